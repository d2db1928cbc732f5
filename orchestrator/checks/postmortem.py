"""Post-mortem of a run: its failure, or why it does not end, from its kept lines and what its nodes report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contract.events import (
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
from contract.failures.tracebacks import begins
from contract.log_lines import readable
from orchestrator.checks.causes import Cause
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.failure import (
    EndedBadly,
    Failure,
    GenerationFailure,
    generation_failures,
    is_consequence,
    root_cause,
)
from orchestrator.checks.hang import (
    LastHeard,
    RankPlace,
    describe_waits,
    last_heard,
    liveness_reports,
    rank_places,
    rank_waited_for,
    timestamp,
)
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts, State
from orchestrator.specs.run_events import RunLine

KEPT_LINES = 400
"""Number of lines kept of a node, before its end: a traceback of each of eight ranks and torchrun's summary."""
EVENTS_OF_A_NODE = 1000
"""Number of events kept of a node, the newest."""
EVENTS = (
    Finished, GenerationStarted, GroupJoined, LivenessReported, NodesEvent, RankFailed, RankStarted, Restarting,
    StacksTaken, TrainingStopped,
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
    lines: tuple[RunLine, ...] = ()
    """Its `EVENTS`, and the last lines of each node and rank, in order of time."""
    containers: Mapping[str, ContainerFacts] = field(default_factory=dict)
    """Facts of its containers by node; only nodes that answered."""
    kernel: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    """Nodes that did not answer."""
    outcome: tuple[str, str] | None = None
    """State and reason, where this controller saw the end."""
    now: float = 0.0
    """Seconds since 1970; counts only while the run is running."""

    @property
    def job(self) -> ClusterJob | None:
        """Where the run is a job of a cluster."""
        if self.plan or not self.cluster:
            return ClusterJob.of(self.plan)
        return ClusterJob(cluster=self.cluster, nodes=max(1, len(self.containers)))


@dataclass(frozen=True, kw_only=True)
class Postmortem:
    """Report of `orch why`."""

    run_id: str
    state: str
    """failed, stopped, done, running, queued, or unknown: its end was not seen."""
    failure: Failure | None = None
    at: str = ""
    """Time of the first sign of the failure."""
    after_s: float | None = None
    """Seconds between the start and the first failure."""
    consequences: tuple[str, ...] = ()
    earlier: tuple[GenerationFailure, ...] = ()
    """Failures that the run survived."""
    heard: tuple[LastHeard, ...] = ()
    """Last line of each rank, for a run that is running or that ended in waiting."""
    liveness: tuple[str, ...] = ()
    """Decisions of the coordinator that stand, or stood before the failure."""
    waits: tuple[str, ...] = ()
    places: tuple[RankPlace, ...] = ()
    """Where each rank is, or was before the failure."""
    silent: tuple[str, ...] = ()


def write_postmortem(evidence: Evidence) -> Postmortem:
    """The post-mortem of the newest attempt."""
    if waits := _queue_reasons(evidence):
        return Postmortem(run_id=evidence.run_id, state="queued", earlier=_survived(evidence), waits=waits)
    lines = _newest_generation(_newest_attempt(evidence))
    agreed = generation_failures(_newest_attempt(evidence))
    over = next((one for one in agreed if not one.generation), None)
    bad = _ended_badly(evidence, lines)
    failure, state = None, _good_end(evidence, lines)
    if not state:
        failure = root_cause([ended for _, ended in bad], agreed=over, run=evidence.run_id, job=evidence.job)
        # The logs end as if nothing had happened: only this controller saw the failure.
        unexplained = failure and (not failure.cause or (failure.cause.id == "code.exit" and failure.exit_code == 1))
        if failure is None or (unexplained and not over):
            failure = _lost(evidence) or failure
        running = any(container.state is State.RUNNING for container in evidence.containers.values())
        state = "failed" if failure else "running" if running else "unknown"
    first_sign = min((time for time, _ in bad if time), default="") if failure else ""
    places, reports = rank_places(lines, until=first_sign), liveness_reports(lines, until=first_sign)
    if failure and _was_waiting(failure):
        failure = _held_up(failure, reports, places, evidence) or failure
    at = next((time for time, ended in bad if time and failure and ended.node == failure.node), first_sign)
    at = at or (over.time if over else "")
    waited = state in ("running", "unknown") or (failure and _was_waiting(failure))
    newest = max((timestamp(said.time) for said in lines), default=0.0)
    heard = last_heard(lines, evidence.plan, max(newest, evidence.now if state == "running" else 0.0)) if waited else ()
    return Postmortem(
        run_id=evidence.run_id,
        state=state,
        failure=failure,
        at=at if failure else "",
        after_s=max(0.0, timestamp(at) - timestamp(evidence.plan.started_at))
        if failure and at and evidence.plan
        else None,
        consequences=tuple(_consequences([ended for _, ended in bad if failure and ended.node != failure.node])),
        earlier=_survived(evidence),
        heard=heard,
        liveness=tuple(report.message for report in reports) if waited else _notes(lines) if state == "done" else (),
        waits=describe_waits(lines, heard) if waited else (),
        places=places if waited else (),
        silent=evidence.silent,
    )


def _notes(lines: Sequence[RunLine]) -> tuple[str, ...]:
    """Sentence of the coordinator about a run that ended well."""
    notes = (said.event.note for said in lines if isinstance(said.event, Finished) and said.event.note)
    return tuple(dict.fromkeys(notes))


def _queue_reasons(evidence: Evidence) -> tuple[str, ...]:
    """Sentences about a job that its scheduler has not started yet, or will start again; empty: it is in no queue."""
    held = evidence.containers.values()
    if not held or any(container.state is not State.QUEUED for container in held):
        return ()
    return tuple(dict.fromkeys(f"the scheduler's reason: {container.error or 'none'}" for container in held))


def _survived(evidence: Evidence) -> tuple[GenerationFailure, ...]:
    """Failures after which the agents restarted the ranks or, on a cluster, the scheduler started the job again."""
    newest = _newest_attempt(evidence)
    before = set(evidence.lines) - set(newest) if evidence.plan and evidence.plan.cluster else ()
    older = generation_failures(line for line in evidence.lines if line in before)
    return tuple(one for one in (*older, *generation_failures(newest)) if one.generation)


def _newest_attempt(evidence: Evidence) -> tuple[RunLine, ...]:
    """Lines of the newest attempt: without those recorded before the plan was last made."""
    if not evidence.plan or not evidence.plan.attempt:
        return evidence.lines
    start = timestamp(evidence.plan.started_at)
    return tuple(said for said in evidence.lines if timestamp(said.time) >= start)


def _newest_generation(lines: Sequence[RunLine]) -> tuple[RunLine, ...]:
    """Lines of each node since its supervisor last started torchrun."""
    since: dict[str, int] = {}
    for number, said in enumerate(lines):
        if isinstance(said.event, GenerationStarted):
            since[said.node] = number
    return tuple(said for number, said in enumerate(lines) if number >= since.get(said.node, 0))


def _good_end(evidence: Evidence, lines: Sequence[RunLine]) -> str:
    """`stopped` or `done`, as the ranks report: torchrun exits 1 after a clean stop too."""
    events = [said.event for said in lines if said.event]
    ends = {event.outcome for event in events if isinstance(event, Finished)}
    if "stopped" in ends or any(isinstance(event, TrainingStopped) for event in events):
        return "stopped"
    held = evidence.containers.values()
    if "done" in ends or (held and all(container.state is State.SUCCEEDED for container in held)):
        return "done"
    state = evidence.outcome[0] if evidence.outcome else ""
    return {"succeeded": "done", "stopped": "stopped"}.get(state, "")


def _ended_badly(evidence: Evidence, lines: Sequence[RunLine]) -> list[tuple[str, EndedBadly]]:
    """Nodes that failed, by their first sign; if the run failed and no node has a sign, all that wrote a line."""
    found = list(_with_signs(evidence, lines, all_of_them=False))
    if not found and evidence.outcome and evidence.outcome[0] == "failed":
        everyone = list(_with_signs(evidence, lines, all_of_them=True))
        found = [(time, ended) for time, ended in everyone if is_consequence(ended)] or everyone
    return sorted(found, key=lambda pair: pair[0])


def _with_signs(evidence: Evidence, lines: Sequence[RunLine], *, all_of_them: bool) -> Iterator[tuple[str, EndedBadly]]:
    parts = {part.node: part for part in evidence.plan.nodes} if evidence.plan else {}
    for node in dict.fromkeys([*parts, *(said.node for said in lines), *evidence.containers]):
        own = [said for said in lines if said.node == node][-KEPT_LINES:]
        container = evidence.containers.get(node)
        reports = [(said.time, said.event) for said in own if isinstance(said.event, RankFailed)]
        texts = [(said.time, readable(said.text)) for said in own]
        signs = [time for time, text in texts if begins(text) or _BAD_SIGN.search(text)] + [time for time, _ in reports]
        failed = (container is not None and container.state is State.FAILED) or (all_of_them and own)
        goes_well = container is not None and container.state in (State.RUNNING, State.SUCCEEDED)
        if goes_well or not (failed or signs):
            continue
        report = reports[0][1] if reports else None
        plain = [(said.rank, said.text) for said in own if said.event is None]
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
    if not evidence.outcome or evidence.outcome[0] != "failed" or evidence.outcome[1].startswith("exit code"):
        return None
    node = next(iter(evidence.silent), "?")
    return Failure(node=node, rank=-1, exit_code=None, reason=evidence.outcome[1], lines=())


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
    cause = (
        Cause.of(named, job=evidence.job, node=place.node, rank=str(place.rank), run=evidence.run_id) if named else None
    )
    return Failure(node=place.node, rank=place.rank, exit_code=None, reason=why, lines=(), cause=cause)
