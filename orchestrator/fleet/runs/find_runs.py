"""Find runs by the labels on their containers: from any machine, without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.records import RunRecord, recorded_runs
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError, PreflightError, UsageError
from orchestrator.specs.labels import RunLabels, read_labels
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ACTIVE, ContainerFacts, Member, Run, State

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

    @classmethod
    def of(cls, node: Node, node_rank: int, facts: ContainerFacts) -> RunningContainer:
        return cls(node=node, node_rank=node_rank, id=facts.id, secrets=secrets_of(facts.labels))


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
    """Whether it is a part of a job, of which the scheduler makes the attempts."""

    @property
    def member(self) -> Member:
        return Member(node=self.node, node_rank=self.says.node_rank, state=self.facts.state, container=self.facts)


def find_runs(nodes: Sequence[Node], *, some: bool = False) -> FoundRuns:
    """Ask every node for its containers with a run's label. `some`: these are a choice of nodes, so that a rank which
    none of them shows is not lost, but may be on another one."""
    from orchestrator.nodes.cluster_nodes import (
        cluster_of,
    )  # with the engine of processes: readers of records need none

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
    runs.sort(key=lambda run: datetime.fromisoformat(run.started_at).timestamp() if run.started_at else 0, reverse=True)
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


def choose_run(found: FoundRuns, wanted: str | None) -> Run:
    """The run with this id, or with the one id that begins with it; the newest run where `wanted` is None.

    ConfigError where there is no such run; PreflightError where a node that did not answer may hold it.
    """
    silent = ", ".join(found.unreachable)
    if wanted is None:
        if found.runs:
            return found.runs[0]
        if silent:
            raise PreflightError(f"no node that answered knows of a run; {silent} did not answer", hint="orch doctor")
        raise ConfigError("no run on any node", hint="orch launch   # starts one")
    beginning = [run for run in found.runs if run.run_id.startswith(wanted)]
    matching = [run for run in beginning if run.run_id == wanted] or beginning
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(run.run_id for run in matching or found.runs) or "none"
    if not matching and silent:
        unknown = f"no run {wanted} on the nodes that answered; {silent} did not answer and may hold it"
        raise PreflightError(unknown, hint="orch doctor")
    problem = f"{len(matching)} runs begin with {wanted}" if matching else f"no run {wanted} on any node"
    recorded = any(record.run_id.startswith(wanted) for record in recorded_runs())
    hint = f"this controller kept its logs: orch logs {wanted}" if recorded else "orch runs"
    raise ConfigError(f"{problem}: {known}", hint=hint)


def only_run_of(found: FoundRuns, user: str) -> Run:
    """The only active run of this user: a stop without a run id never touches another user's run and never guesses."""
    active = [run for run in found.runs if run.active_nodes]
    mine = [run for run in active if run.user == user]
    if len(mine) == 1:
        return mine[0]
    if not found.runs:
        return choose_run(found, None)
    silent = f" ({', '.join(found.unreachable)} did not answer)" if found.unreachable else ""
    number = f"{len(mine)} of your runs are active" if mine else "you have no active run"
    lines = [f"\n  {run.run_id}  by {run.user or '?'}  {run.command}" for run in active]
    hint = "all runs: orch runs; one of them: orch stop RUN"
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
    return tuple(
        RunningContainer.of(nodes[member.node], member.node_rank, member.container)
        for member in run.members
        if member.container is not None
    )


def _assemble(run_id: str, held: Sequence[LabelledContainer]) -> Run:
    """The current attempt, as most of its containers describe it."""
    plan = RunRecord(run_id).newest_plan()
    attempt = _current_attempt(held, plan)
    current = [one for one in held if one.says.attempt == attempt]
    alike = Counter(replace(one.says, node_rank=0) for one in current or held)
    says = alike.most_common(1)[0][0]
    nnodes = says.nnodes or len(current)
    return Run(
        run_id=run_id,
        project=says.project,
        attempt=attempt,
        user=says.user,
        started_at=says.started_at,
        nnodes=nnodes if current or plan is None else plan.nnodes,
        command=says.command,
        master=says.master,
        members=tuple(sorted((one.member for one in current), key=lambda member: member.node_rank)),
        earlier=tuple((one.says.attempt, one.member) for one in held if one.says.attempt < attempt),
        foreign=tuple((one.says.attempt, one.member) for one in held if one.says.attempt > attempt),
    )


def _current_attempt(held: Sequence[LabelledContainer], plan: Plan | None) -> int:
    """The attempt that is the run.

    This computer's record decides: one container with a later number would otherwise hide the run from `stop`. A later
    attempt counts once more than half of the recorded nodes show it: another computer has continued the run. Without a
    record the nodes vote, each for the last attempt that it shows; an attempt with active containers goes first.
    """
    if jobs := [one.says.attempt for one in held if one.scheduled]:
        return max(jobs)
    shown: dict[int, set[str]] = {}
    for one in held:
        shown.setdefault(one.says.attempt, set()).add(one.node)
    if plan:
        own = {part.node for part in plan.nodes}
        later = [number for number in shown if number > plan.attempt and 2 * len(shown[number] & own) > len(own)]
        known = [number for number in shown if number <= plan.attempt]
        return max(later or known or [plan.attempt])
    active = Counter(one.says.attempt for one in held if one.facts.state in ACTIVE)
    last = {node: max(one.says.attempt for one in held if one.node == node) for node in {one.node for one in held}}
    votes = Counter(last.values())
    return max(shown, key=lambda number: (active[number], votes[number], number))


def _with_lost(run: Run, unreachable: Mapping[str, OrchError]) -> Run:
    """Add the ranks that no node shows as lost; they may be on a node that does not answer."""
    missing = sorted(set(range(run.nnodes)) - {member.node_rank for member in run.members})
    reason = f"{', '.join(unreachable)} did not answer" if unreachable else "no node holds its container"
    plan = RunRecord(run.run_id).plan() if missing else None
    known = {part.node_rank: part.node for part in plan.nodes} if plan and plan.attempt == run.attempt else {}
    lost = Member(node="?", node_rank=0, state=State.LOST, reason=reason, out_of_reach=bool(unreachable))
    members = [*run.members, *(replace(lost, node_rank=rank, node=known.get(rank, "?")) for rank in missing)]
    return replace(run, members=tuple(sorted(members, key=lambda member: member.node_rank)))
