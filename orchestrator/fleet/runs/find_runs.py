"""Find runs by the labels on their containers: from any machine, without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError, PreflightError, UsageError
from orchestrator.specs.labels import RunLabels, read_labels, understood
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ACTIVE, ContainerFacts, Member, Run, State
from orchestrator.state.journal import Journal
from orchestrator.store.run_names import ON_RECORD, KnownRun, OnlyOnRecordError, Purpose, matching, resolve, unknown_run
from orchestrator.store.run_record import RunRecord, known_records

TIMEOUT_S = 20.0
CLOCKS_DIFFER = timedelta(days=1)
"""Tolerance for clock differences: a label with a later start time is not valid."""


@dataclass(frozen=True, kw_only=True)
class RunningContainer:
    """A node with its container of this run."""

    node: Node
    node_rank: int
    id: str
    secrets: str = ""
    """Folder of its secrets on the node."""
    attempt: int | None = field(default=None, compare=False)
    """Attempt by its label; None: not known."""

    @classmethod
    def of(cls, node: Node, node_rank: int, facts: ContainerFacts) -> RunningContainer:
        says = understood(facts.labels)
        attempt, secrets = says.attempt if says else None, secrets_of(facts.labels)
        return cls(node=node, node_rank=node_rank, id=facts.id, secrets=secrets, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class FoundRuns:
    """All runs that the nodes know of, newest first, and the nodes that gave no answer."""

    runs: tuple[Run, ...]
    unreachable: Mapping[str, OrchError]
    not_understood: tuple[str, ...] = ()
    """Containers with labels that no run has, each with its node: they are part of no run."""


@dataclass(frozen=True, kw_only=True)
class LabelledContainer:
    """A container of a run that a node shows."""

    node: str
    facts: ContainerFacts
    says: RunLabels
    scheduled: bool = False
    """True if it is a part of a job, of which the scheduler makes the attempts."""

    @property
    def claimed(self) -> tuple[int, str]:
        """Its attempt and the id of the claim."""
        return self.says.attempt, self.says.claim

    @property
    def member(self) -> Member:
        return Member(node=self.node, node_rank=self.says.node_rank, state=self.facts.state, container=self.facts)


def find_runs(nodes: Sequence[Node], *, some: bool = False) -> FoundRuns:
    """Ask every node for its containers with a run's label. `some`: these are a choice of nodes, so that a rank which
    none of them shows is not lost, but may be on another one."""
    from orchestrator.nodes.cluster_nodes import cluster_of  # with an engine, which readers of records need not

    outcomes = fan_out(nodes, lambda node: node.engine.containers({labels.LABEL_RUN: ""}), timeout_s=TIMEOUT_S)
    unreachable = {outcome.item.name: outcome.error for outcome in outcomes if outcome.error}
    held: dict[str, list[LabelledContainer]] = {}
    strange: list[str] = []
    for outcome in outcomes:
        of_runs, others = split_by_labels(outcome.item.name, outcome.result or ())
        strange += others
        scheduled = bool(cluster_of(outcome.item))
        for one in of_runs:
            held.setdefault(one.says.run_id, []).append(replace(one, scheduled=scheduled))
    runs = [_assemble(run_id, shown) for run_id, shown in held.items()]
    if not some:
        runs = [_with_lost(run, unreachable) for run in runs]
    runs.sort(key=lambda run: _started(run.started_at), reverse=True)
    return FoundRuns(runs=tuple(runs), unreachable=unreachable, not_understood=tuple(strange))


def split_by_labels(node: str, containers: Sequence[ContainerFacts]) -> tuple[list[LabelledContainer], list[str]]:
    """Containers with valid labels of a run, and a message for each other one."""
    latest = datetime.now(UTC) + CLOCKS_DIFFER
    held, strange = [], []
    for facts in containers:
        try:
            held.append(LabelledContainer(node=node, facts=facts, says=read_labels(facts.labels, latest=latest)))
        except ValueError as error:
            strange.append(f"{node}: container {facts.name} is not understood and left out: {error}")
    return held, strange


def run_on_nodes(found: FoundRuns, wanted: str | None, purpose: Purpose = "look") -> Run:
    """The run on the nodes that `wanted` means, as `resolve` decides; the active or newest one where it is None.

    ConfigError where there is no such run; PreflightError where a node that did not answer may hold it.
    """
    known, records = known_runs(found), known_records()
    if wanted:  # a run of this name on record, not one on the nodes whose name is longer
        meant = matching(wanted, (one.run_id for one in (*known, *records)))
        known = [one for one in known if one.run_id in meant]
    chosen = resolve(wanted, known, purpose)
    if run := next((run for run in found.runs if run.run_id == chosen), None):
        return run
    silent = ", ".join(found.unreachable)
    if wanted is None:
        if silent:
            raise PreflightError(f"no node that answered knows of a run; {silent} did not answer", hint="orch doctor")
        raise ConfigError("no run on any node", hint="orch launch   # starts one")
    if silent:
        unknown = f"no run {wanted} on the nodes that answered; {silent} did not answer and may hold it"
        raise PreflightError(unknown, hint="orch doctor")
    if recorded := resolve(wanted, records):
        raise OnlyOnRecordError(wanted, recorded)
    names = [*(run.run_id for run in found.runs), *(one.run_id for one in records)]
    raise unknown_run(wanted, f"on any node or {ON_RECORD}", names)


def run_or_record(found: FoundRuns, wanted: str | None) -> Run | RunRecord:
    """The run on the nodes that `wanted` means, or the record of one that no node shows any more.

    Errors: as of `run_on_nodes`.
    """
    chosen = resolve(wanted, known_anywhere(found))
    if chosen is None or chosen in [run.run_id for run in found.runs]:
        return run_on_nodes(found, chosen or wanted)
    return RunRecord(chosen)


def known_anywhere(found: FoundRuns) -> list[KnownRun]:
    """The runs on the nodes and on record; the time on record counts before that of a label."""
    records = known_records()
    times = {one.run_id: one.at for one in records}
    return [*(replace(one, at=times.get(one.run_id, one.at)) for one in known_runs(found)), *records]


def known_runs(found: FoundRuns) -> list[KnownRun]:
    """The same runs, as `resolve` needs them."""
    return [
        KnownRun(run_id=run.run_id, at=_started(run.started_at), active=bool(run.active_nodes)) for run in found.runs
    ]


def _started(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def only_run_of(found: FoundRuns, user: str) -> Run:
    """The only active run of this user: a stop without a run id never touches another user's run and never guesses."""
    active = [run for run in found.runs if run.active_nodes]
    mine = [run for run in active if run.user == user]
    if len(mine) == 1:
        return mine[0]
    if not found.runs:
        return run_on_nodes(found, None)
    silent = f" ({', '.join(found.unreachable)} did not answer)" if found.unreachable else ""
    number = f"{len(mine)} of your runs are active" if mine else "you have no active run"
    lines = [f"\n  {run.run_id}  by {run.user or '?'}  {run.command}" for run in active]
    hint = "all runs: orch runs; one of them: orch stop RUN"
    if not active and not silent:
        raise UsageError(number, hint="orch runs")
    raise UsageError(f"{number}{silent}: name the run{''.join(lines)}", hint=hint)


def must_be_over(found: FoundRuns, run_id: str) -> None:
    """ConflictError if a container of the run has not ended, whatever its attempt: two writers would corrupt its
    checkpoints."""
    if holders := [name for run in found.runs if run.run_id == run_id for name in run.active_nodes]:
        raise ConflictError(
            f"run {run_id} still runs on {', '.join(holders)}",
            hint=f"to stop it and continue: orch restart {run_id}; to end it: orch stop {run_id}",
        )


def running_containers(run: Run, nodes: Mapping[str, Node]) -> tuple[RunningContainer, ...]:
    """The run's containers that can be talked to."""
    return containers_of(run.members, nodes)


def containers_of(members: Iterable[Member], nodes: Mapping[str, Node]) -> tuple[RunningContainer, ...]:
    """Those containers of these members that are on one of these nodes."""
    return tuple(
        RunningContainer.of(nodes[member.node], member.node_rank, member.container)
        for member in members
        if member.container is not None and member.node in nodes
    )


def find_again(container: RunningContainer, run_id: str) -> ContainerFacts | None:
    """The container as its node reports it; by its labels if the node never answered before. None: there is none."""
    if container.id:
        return container.node.engine.container(container.id)
    rank = {labels.LABEL_RUN: run_id, labels.LABEL_NODE_RANK: str(container.node_rank)}
    shown = [(understood(facts.labels), facts) for facts in container.node.engine.containers(rank)]
    newest = max(((says.attempt, facts.id, facts) for says, facts in shown if says), default=None)
    return newest[2] if newest else None


def _assemble(run_id: str, held: Sequence[LabelledContainer]) -> Run:
    """The current attempt, as most of its containers describe it; the others beside it."""
    record = RunRecord(run_id)
    plan = record.newest_plan()
    if any(one.scheduled for one in held):
        parts = _of_attempt(held, max(one.says.attempt for one in held if one.scheduled))
    elif plan:
        parts = _by_record(held, record.journal, plan)
    else:
        parts = _by_votes(held)
    alike = Counter(replace(one.says, node_rank=0) for one in parts.current or held)
    says = alike.most_common(1)[0][0]
    return Run(
        run_id=run_id,
        project=says.project,
        attempt=parts.attempt,
        user=says.user,
        started_at=says.started_at,
        nnodes=plan.nnodes if plan and not parts.current else says.nnodes or len(parts.current),
        command=says.command,
        master=says.master,
        members=tuple(sorted((one.member for one in parts.current), key=lambda member: member.node_rank)),
        earlier=tuple((one.says.attempt, one.member) for one in parts.earlier),
        foreign=tuple((one.says.attempt, one.member) for one in parts.foreign),
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Containers with a run's label, by what they are to it."""

    attempt: int
    current: Sequence[LabelledContainer]
    earlier: Sequence[LabelledContainer]
    foreign: Sequence[LabelledContainer] = ()


def _of_attempt(
    held: Sequence[LabelledContainer], attempt: int, claim: str | None = None, foreign: Sequence[LabelledContainer] = ()
) -> _Parts:
    """Those of one attempt and claim are the run; `foreign` and later ones, or of another claim, are not."""
    own = [one for one in held if one not in foreign]
    current = [one for one in own if one.says.attempt == attempt and claim in (None, one.says.claim)]
    earlier = [one for one in own if one.says.attempt < attempt]
    others = [one for one in own if one not in current and one not in earlier]
    return _Parts(attempt=attempt, current=current, earlier=earlier, foreign=[*foreign, *others])


def _by_record(held: Sequence[LabelledContainer], journal: Journal, plan: Plan) -> _Parts:
    """This computer's record decides: one container with a later number would otherwise hide the run from `stop`.

    A later claim counts once more than half of the recorded nodes show it: another computer has continued the run.
    """
    nodes = {part.node for part in plan.nodes}
    shown: dict[tuple[int, str], set[str]] = {}
    for one in held:
        if one.says.attempt > plan.attempt and one.node in nodes:
            shown.setdefault(one.claimed, set()).add(one.node)
    if later := [claimed for claimed, where in shown.items() if 2 * len(where) > len(nodes)]:
        return _of_attempt(held, *max(later))
    foreign = [one for one in held if _is_foreign(one, journal, plan.attempt)]
    known = [one.says.attempt for one in held if one not in foreign]
    return _of_attempt(held, max(known, default=plan.attempt), foreign=foreign)


def _is_foreign(one: LabelledContainer, journal: Journal, newest: int) -> bool:
    """Return whether the record, whose newest attempt that is, has not made this container."""
    known = journal.attempt(one.says.attempt)
    if one.says.attempt > newest or known is None:
        return one.says.attempt > newest  # earlier ones may be from before this computer took the run over
    made = known.started.containers.values() if known.started else ()
    return known.claim.id != one.says.claim or (bool(made) and one.facts.id not in made)


def _by_votes(held: Sequence[LabelledContainer]) -> _Parts:
    """Let each node vote, without a record, for the claim of the last attempt that it shows; one with active
    containers goes first, and of equals the highest number."""
    active = Counter(one.claimed for one in held if one.facts.state in ACTIVE)
    last = {node: max(one.claimed for one in held if one.node == node) for node in {one.node for one in held}}
    votes = Counter(last.values())
    return _of_attempt(held, *max(last.values(), key=lambda claimed: (active[claimed], votes[claimed], claimed)))


def _with_lost(run: Run, unreachable: Mapping[str, OrchError]) -> Run:
    """Add the ranks that no node shows as lost; they may be on a node that does not answer."""
    missing = sorted(set(range(run.nnodes)) - {member.node_rank for member in run.members})
    reason = f"{', '.join(unreachable)} did not answer" if unreachable else "no node holds its container"
    plan = RunRecord(run.run_id).plan() if missing else None
    known = {part.node_rank: part.node for part in plan.nodes} if plan and plan.attempt == run.attempt else {}
    lost = Member(node="?", node_rank=0, state=State.LOST, reason=reason, out_of_reach=bool(unreachable))
    members = [*run.members, *(replace(lost, node_rank=rank, node=known.get(rank, "?")) for rank in missing)]
    return replace(run, members=tuple(sorted(members, key=lambda member: member.node_rank)))
