"""Post-mortem of a run: its failure, or why it does not end, from its stored lines and what its nodes report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from contract.events import (
    DataDamaged,
    Event,
    Finished,
    GenerationStarted,
    GroupJoined,
    LivenessReported,
    NodesEvent,
    RankFailed,
    RankStarted,
    Restarting,
    StacksTaken,
    TrainingStopped,
)
from contract.failures.classify import FailedRank, classify
from contract.failures.owners import Owner
from contract.failures.tracebacks import begins
from contract.log_lines import readable
from orchestrator.checks.causes import Cause
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.failure import (
    EndedBadly,
    Failure,
    GenerationFailure,
    is_consequence,
    root_cause,
)
from orchestrator.checks.hang import LastLine, collective_waits, last_lines, timestamp
from orchestrator.checks.own_files import IsFolder, OwnFiles
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts, Member, Run, State, short_id
from orchestrator.specs.run_events import RunLine
from orchestrator.state.condition import Condition
from orchestrator.state.conditions import damaged_data, is_unsupervised
from orchestrator.state.facts import JournalRead, LineRead, RunSeen, SupervisorSought
from orchestrator.state.journal import Journal
from orchestrator.state.next_step import again
from orchestrator.state.phase import Phase, phase_of
from orchestrator.state.rank_places import RankPlace, liveness_reports, rank_places, rank_waited_for, waits_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState

MAX_LINES = 400
"""Number of lines kept of a node, before its end: a traceback of each of eight ranks and torchrun's summary."""
EVENTS_OF_A_NODE = 1000
"""Number of events kept of a node, the newest."""
EVENTS = (
    DataDamaged, Finished, GenerationStarted, GroupJoined, LivenessReported, NodesEvent, RankFailed, RankStarted,
    Restarting, StacksTaken, TrainingStopped,
)  # fmt: skip
"""Events that a post-mortem reads, wherever they are in the log."""
_BAD_SIGN = re.compile(r"^(?:\S+: )?error: |^\s+exitcode +: |exec format error")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All evidence of a run."""

    run_id: str
    plan: Plan | None = None
    cluster: str = ""
    """Cluster that shows the run, also where no plan is known."""
    journal: Journal = field(default_factory=Journal)
    """Its record on this computer."""
    attempt: int | None = None
    """Attempt of its containers; None: the recorded one."""
    lines: tuple[RunLine, ...] = ()
    """Its `EVENTS`, and the last lines of each node and rank, in order of time."""
    containers: Mapping[str, ContainerFacts] = field(default_factory=dict)
    """Facts of its containers by node; only nodes that answered."""
    kernel: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    """Nodes that did not answer."""
    is_supervised: bool | None = None
    """Same as of a `RunState`."""
    asked: bool = False
    """True if nodes were asked for its containers."""
    now: float = 0.0
    """Seconds since 1970; counts only while the run is running."""
    is_folder: IsFolder = lambda _path: None
    """True if a path of this computer is a folder; None: nothing is there, or was looked for."""

    @property
    def job(self) -> ClusterJob | None:
        """Job of the cluster, where the run is one."""
        if self.plan or not self.cluster:
            return ClusterJob.of(self.plan)
        return ClusterJob(cluster=self.cluster, nodes=max(1, len(self.containers)))

    @property
    def again(self) -> str:
        """Line that continues the run once the cause of its failure is removed."""
        return again(self.plan, self.run_id, from_checkpoint=bool(self.journal.lineage()))

    @property
    def recorded_failure(self) -> str | None:
        """Reason for the failure, where this computer saw one."""
        end = self.journal.end
        return end.reason if end and end.state == "failed" else None


@dataclass(frozen=True, kw_only=True)
class Postmortem:
    """Report of `orch why`."""

    run_id: str
    state: str
    """Phase of the run."""
    failure: Failure | None = None
    at: str = ""
    """Time of the first sign of the failure."""
    after_s: float | None = None
    """Seconds between the start and the first failure."""
    consequences: tuple[str, ...] = ()
    earlier: tuple[GenerationFailure, ...] = ()
    """Failures that the run survived."""
    heard: tuple[LastLine, ...] = ()
    """Last line of each rank, for a run that is running or that ended in waiting."""
    liveness: tuple[str, ...] = ()
    """Decisions of the coordinator that stand, or stood before the failure."""
    waits: tuple[str, ...] = ()
    places: tuple[RankPlace, ...] = ()
    """Position of each rank, or its position before the failure."""
    silent: tuple[str, ...] = ()
    data: tuple[Condition, ...] = ()
    """Conditions of nodes of which data was damaged."""
    is_unsupervised: bool = False
    """True if it is active and no process of this computer, which has launched it, supervises it."""


def write_postmortem(evidence: Evidence) -> Postmortem:
    """The post-mortem of the newest attempt."""
    attempt = _newest_attempt(evidence)
    state = state_of(evidence, attempt)
    phase, lines = phase_of(state), _newest_generation(state, attempt)
    if phase is Phase.QUEUED:
        waits = _queue_reasons(evidence)
        return Postmortem(run_id=evidence.run_id, state=phase.value, earlier=_survived(evidence), waits=waits)
    over = next((one for one in generation_failures(attempt) if not one.generation), None)
    bad = _ended_badly(evidence, lines)
    failure = None if phase in (Phase.SUCCEEDED, Phase.STOPPED) else _failure(evidence, bad, over)
    first_sign = min((time for time, _ in bad if time), default="") if failure else ""
    before = state_of(evidence, _without_end(attempt, first_sign))
    now = max(_newest(lines), evidence.now if phase.is_active else 0.0)
    places, reports = rank_places(before, now if phase.is_active else None), liveness_reports(before)
    if failure and _was_waiting(failure):
        failure = _held_up(failure, reports, places, evidence) or failure
    at = next((time for time, ended in bad if time and failure and ended.node == failure.node), first_sign)
    at = (at or (over.time if over else "")) if failure else ""
    waited = _was_waiting(failure) if failure else phase not in (Phase.SUCCEEDED, Phase.STOPPED)
    heard = last_lines(lines, evidence.plan, now) if waited else ()
    note = state.finished.note if state.finished and phase is Phase.SUCCEEDED else ""
    return Postmortem(
        run_id=evidence.run_id,
        state=phase.value,
        failure=failure,
        at=at,
        after_s=max(0.0, timestamp(at) - timestamp(evidence.plan.started_at)) if at and evidence.plan else None,
        consequences=tuple(_consequences([ended for _, ended in bad if failure and ended.node != failure.node])),
        earlier=_survived(evidence),
        heard=heard,
        liveness=tuple(report.message for report in reports) if waited else (note,) if note else (),
        waits=(*waits_of(before, heard, now), *collective_waits(lines, heard)) if waited else (),
        places=places if waited else (),
        silent=evidence.silent,
        data=tuple(damaged_data(state, phase)),
        is_unsupervised=phase.is_active and is_unsupervised(state, evidence.now),
    )


def state_of(evidence: Evidence, lines: Sequence[RunLine]) -> RunState:
    """The state of the run, by these lines of its evidence."""
    state, seen = RunState(run_id=evidence.run_id), max(_newest(lines), evidence.now)
    apply(state, JournalRead(seen=seen, journal=evidence.journal, plan=evidence.plan))
    apply(state, SupervisorSought(seen=seen, found=evidence.is_supervised))
    if evidence.containers or evidence.asked:
        run = _run(evidence) if evidence.containers else None
        apply(state, RunSeen(seen=seen, run=run, unreachable=evidence.silent))
    for line in lines:
        apply(state, LineRead(seen=seen, line=line))
    return state


def _run(evidence: Evidence) -> Run:
    """The run as its containers show it."""
    plan, shown, current = evidence.plan, evidence.containers, evidence.journal.current
    planned = [part.node for part in plan.nodes] if plan else []
    names = dict.fromkeys([*(planned if set(planned) & set(shown) else ()), *shown])
    members = tuple(
        Member(
            node=name,
            node_rank=rank,
            state=shown[name].state if name in shown else State.LOST,
            container=shown.get(name),
            out_of_reach=name in evidence.silent,
        )
        for rank, name in enumerate(names)
    )
    recorded = current.number if current else plan.attempt if plan else 0
    return Run(
        run_id=evidence.run_id, project="", attempt=recorded if evidence.attempt is None else evidence.attempt, user="",
        started_at="", nnodes=len(names), command="", master=next(iter(names)), members=members,
    )  # fmt: skip


def _newest(lines: Sequence[RunLine]) -> float:
    return max((timestamp(line.time) for line in lines), default=0.0)


def _without_end(lines: Sequence[RunLine], until: str) -> tuple[RunLine, ...]:
    """Lines up to this time, without the reports of agents that the attempt is over: what was before it."""
    return tuple(line for line in lines if not isinstance(line.event, Finished) and (not until or line.time <= until))


def _failure(
    evidence: Evidence, bad: Sequence[tuple[str, EndedBadly]], over: GenerationFailure | None
) -> Failure | None:
    """The failure by the lines or, where the logs end as if nothing had happened, the one that this computer saw."""
    failure = root_cause(
        [ended for _, ended in bad],
        agreed=over,
        run=evidence.run_id,
        again=evidence.again,
        job=evidence.job,
        here=OwnFiles(plan=evidence.plan, is_folder=evidence.is_folder),
    )
    unexplained = failure and (not failure.cause or (failure.cause.id == "code.exit" and failure.exit_code == 1))
    return (_lost(evidence) or failure) if failure is None or (unexplained and not over) else failure


def _queue_reasons(evidence: Evidence) -> tuple[str, ...]:
    """Sentences about a job that its scheduler has not started yet, or will start again."""
    reasons = (container.error or "none" for container in evidence.containers.values())
    return tuple(dict.fromkeys(f"the scheduler's reason: {reason}" for reason in reasons))


def _survived(evidence: Evidence) -> tuple[GenerationFailure, ...]:
    """Failures after which the agents restarted the ranks or, on a cluster, the scheduler started the job again."""
    newest = _newest_attempt(evidence)
    before = set(evidence.lines) - set(newest) if evidence.plan and evidence.plan.cluster else ()
    older = generation_failures(line for line in evidence.lines if line in before)
    return tuple(one for one in (*older, *generation_failures(newest)) if one.generation)


def generation_failure(event: Event | None, time: str = "") -> GenerationFailure | None:
    """The failure that this event reports; None for another event, and for a good end."""
    if not isinstance(event, Finished | Restarting):
        return None
    owner = next((owner for owner in get_args(Owner) if owner == event.outcome), None)
    if owner is None:
        return None
    return GenerationFailure(
        node=event.node or "?",
        rank=event.rank,
        exit_code=event.exit_code,
        owner=owner,
        reason=event.reason or "",
        cause=event.cause or "",
        frame=event.frame or "",
        generation=event.generation or 0 if isinstance(event, Restarting) else 0,
        time=time,
    )


def generation_failures(lines: Iterable[RunLine]) -> tuple[GenerationFailure, ...]:
    """All failures, in order of time; each once, though every node reports it."""
    found: dict[int, GenerationFailure] = {}
    for line in lines:
        if failure := generation_failure(line.event, line.time):
            found.setdefault(failure.generation, failure)
    return tuple(sorted(found.values(), key=lambda failure: (failure.generation == 0, failure.time)))


def _newest_attempt(evidence: Evidence) -> tuple[RunLine, ...]:
    """Lines of the newest attempt: of its containers, or without those recorded before the plan was last made."""
    journal = evidence.journal
    is_recorded = journal.current and evidence.attempt in (None, journal.current.number)
    if is_recorded and (made := journal.containers):
        own = {short_id(one) for one in made.values()}
        return tuple(line for line in evidence.lines if not line.container or short_id(line.container) in own)
    if not evidence.plan or not evidence.plan.attempt:
        return evidence.lines
    start = timestamp(evidence.plan.started_at)
    return tuple(entry for entry in evidence.lines if timestamp(entry.time) >= start)


def _newest_generation(state: RunState, lines: Sequence[RunLine]) -> tuple[RunLine, ...]:
    """Lines of each node since its supervisor last started torchrun."""
    since = {name: next(reversed(node.part.starts), "") for name, node in state.nodes.items()}
    return tuple(line for line in lines if line.time >= since.get(line.node, ""))


def _ended_badly(evidence: Evidence, lines: Sequence[RunLine]) -> list[tuple[str, EndedBadly]]:
    """Nodes that failed, by their first sign; if the run failed and no node has a sign, all that wrote a line."""
    found = list(_with_signs(evidence, lines, all_of_them=False))
    if not found and evidence.recorded_failure is not None:
        everyone = list(_with_signs(evidence, lines, all_of_them=True))
        found = [(time, ended) for time, ended in everyone if is_consequence(ended)] or everyone
    return sorted(found, key=lambda pair: pair[0])


def _with_signs(evidence: Evidence, lines: Sequence[RunLine], *, all_of_them: bool) -> Iterator[tuple[str, EndedBadly]]:
    parts = {part.node: part for part in evidence.plan.nodes} if evidence.plan else {}
    for node in dict.fromkeys([*parts, *(entry.node for entry in lines), *evidence.containers]):
        own = [entry for entry in lines if entry.node == node][-MAX_LINES:]
        container = evidence.containers.get(node)
        reports = [(entry.time, entry.event) for entry in own if isinstance(entry.event, RankFailed)]
        texts = [(entry.time, readable(entry.text)) for entry in own]
        signs = [time for time, text in texts if begins(text) or _BAD_SIGN.search(text)] + [time for time, _ in reports]
        failed = (container is not None and container.state is State.FAILED) or (all_of_them and own)
        goes_well = container is not None and container.state in (State.RUNNING, State.SUCCEEDED)
        if goes_well or not (failed or signs):
            continue
        report = reports[0][1] if reports else None
        plain = [(entry.rank, entry.text) for entry in own if entry.event is None]
        ranks = [rank for rank, _ in plain if rank is not None]
        node_rank = own[-1].node_rank if own else 0
        first_rank = parts[node].first_rank if node in parts else min(ranks, default=node_rank)
        yield (
            min(signs, default=container.finished_at if container else ""),
            EndedBadly(
                node=node,
                node_rank=node_rank,
                first_rank=first_rank,
                exit_code=container.exit_code if container and container.exit_code is not None else 1,
                oom_killed=bool(container and container.oom_killed),
                lines=(*plain, *([(None, container.error)] if container and container.error else ())),
                reported=report.reason if report else "",
                cause=(report.cause if report else "") or "",
                frame=(report.frame if report else "") or "",
                kernel=evidence.kernel.get(node, ()),
            ),
        )


def _consequences(others: Sequence[EndedBadly]) -> Iterator[str]:
    """Sentences about the nodes that ended after the failure."""
    lost = [ended.node for ended in others if is_consequence(ended)]
    failed = [ended.node for ended in others if ended.node not in lost]
    if lost:
        yield f"{', '.join(lost)} lost {'its peer, or was' if len(lost) == 1 else 'a peer, or were'} stopped"
    if failed:
        yield f"{', '.join(failed)} failed as well"


def _lost(evidence: Evidence) -> Failure | None:
    """A failure that this controller saw, and no line reports."""
    reason = evidence.recorded_failure
    if reason is None or reason.startswith("exit code"):
        return None
    return Failure(node=next(iter(evidence.silent), "?"), rank=-1, exit_code=None, reason=reason, lines=())


def _was_waiting(failure: Failure) -> bool:
    return failure.cause is not None and failure.cause.id in (
        "network.timeout", "nccl.timeout", "network.too_few", "network.rank_missing", "network.peer_lost",
        "nccl.peer_lost", "node.frozen", "code.hung", "code.stuck",
    )  # fmt: skip


def _held_up(
    failure: Failure, reports: Sequence[LivenessReported], places: Sequence[RankPlace], evidence: Evidence
) -> Failure | None:
    """The rank that the others waited for until they timed out, if the coordinator named it."""
    found = rank_waited_for(reports, places)
    if not found or (failure.cause and failure.cause.id == "node.frozen"):
        return None
    place, why = found
    named = classify(FailedRank(reported=why, reported_frame=place.at))
    rank, run = str(place.rank), evidence.run_id
    cause = (
        Cause.of(named, job=evidence.job, node=place.node, rank=rank, run=run, again=evidence.again) if named else None
    )
    return Failure(node=place.node, rank=place.rank, exit_code=None, reason=why, lines=(), cause=cause)
