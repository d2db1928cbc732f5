"""Views of a run and of its nodes: the verdict, and all figures that a screen shows of them, safe to show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from contract.resources import ResourceUsage
from orchestrator.checks.output_progress import output_words
from orchestrator.render.printable import printable
from orchestrator.specs.run import ContainerFacts, State
from orchestrator.state.condition import Code, Condition, Severity
from orchestrator.state.conditions import SWAP_MIB, silent_since
from orchestrator.state.phase import STOPPED_CODE, Phase
from orchestrator.state.progress import RunProgress, progress_of
from orchestrator.state.run_state import NodeState, RunState
from orchestrator.state.verdict import Verdict, verdict
from orchestrator.watch.timeline import TimelineEntry, timeline_of
from orchestrator.watch.words import words

SLOW = {
    Code.SLOW_COMPUTE: "compute",
    Code.SLOW_DATA: "data",
    Code.SLOW_LINK: "link",
    Code.THROTTLED: "throttled",
    Code.SWAPPING: "swapping",
}
"""Reason why the others wait for a node, in a word."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node as it is known now. None: not known. All text is safe to show."""

    name: str
    node_rank: int | None = None
    """None: no part of the run."""
    state: str
    """State of its container; `idle` without one, `connecting` before the first answer, otherwise `no answer`."""
    silent: bool = False
    answered_s: float | None = None
    """Seconds since its newest answer; None: there was none yet."""
    problem: str = ""
    """Reason why it is silent, or how its container ended."""
    slow: str = ""
    """Reason why the others wait for it: compute, data, link, throttled, swapping."""
    usage: ResourceUsage | None = None
    """The newest sample; that of a silent node is old."""
    usage_age_s: float | None = None
    cpu_history: tuple[float, ...] = ()
    gpu_history: tuple[float, ...] = ()
    """Mean utilization of its GPUs, in percent."""
    compute_s: float | None = None
    """Seconds for its part of a step: those of its slowest rank."""
    lines: int = 0
    """Log lines of this attempt that were read."""

    @property
    def note(self) -> str:
        """A remark besides its figures, such as why the others wait for it; empty: none."""
        if self.slow:
            return f"slowest: {self.slow}"
        if slowed := sorted({gpu.slowed_by for gpu in self.usage.gpus if gpu.slowed_by} if self.usage else ()):
            return printable(f"GPU slowed: {', '.join(slowed)}")
        if self.usage and self.usage.swap_used_mib >= SWAP_MIB:
            return "swapping"
        return self.problem


def node_view(
    node: NodeState,
    now: float,
    *,
    phase: Phase = Phase.UNKNOWN,
    compute_s: float | None = None,
    conditions: Collection[Condition] = (),
) -> NodeView:
    """The view of a node. `conditions`: those of its run."""
    silent = silent_since(node, now) is not None
    answered, used = node.last_answer_at, node.usage_at
    slow = (SLOW[one.code] for one in conditions if one.node == node.name and one.code in SLOW)
    return NodeView(
        name=printable(node.name),
        node_rank=node.node_rank,
        state=_state(node, phase),
        silent=silent,
        answered_s=None if answered is None else max(0.0, now - answered),
        problem=printable(_problem(node)),
        slow=next(slow, ""),
        usage=node.usage,
        usage_age_s=None if node.usage is None or used is None else max(0.0, now - used),
        cpu_history=tuple(node.cpu_history),
        gpu_history=tuple(node.gpu_history),
        compute_s=compute_s,
        lines=node.part.lines,
    )


def _state(node: NodeState, phase: Phase) -> str:
    if node.container:
        return State.STOPPED.value if node.container.exit_code == STOPPED_CODE else node.container.state.value
    if node.is_missing and phase.is_active and phase is not Phase.LAUNCHING:
        return State.LOST.value
    if node.last_answer_at is not None:
        return "idle"
    return "connecting" if node.silent_since is None else "no answer"


def _problem(node: NodeState) -> str:
    if node.silent_since is not None or node.container is None:
        return node.error
    facts = node.container
    if not has_failed(facts):
        return facts.error
    return "out of memory" if facts.oom_killed else facts.error or f"exit code {facts.exit_code}"


def has_failed(facts: ContainerFacts) -> bool:
    """Return whether a container has failed: one that was asked to stop, and did, has not."""
    return facts.state is State.FAILED and facts.exit_code != STOPPED_CODE


def slowest_ranks(compute_s: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    """Seconds of the slowest rank of each node. `compute_s`: by `NODE` or `NODE.LOCAL_RANK`."""
    slowest: dict[str, float] = {}
    for label, seconds in compute_s.items():
        name = label if label in names else label.rpartition(".")[0]
        if name in names:
            slowest[name] = max(seconds, slowest.get(name, 0.0))
    return slowest


@dataclass(frozen=True, kw_only=True)
class ConditionView:
    """A condition with its words."""

    code: str
    severity: Severity
    node: str = ""
    """Empty: about the run."""
    rank: int | None = None
    since: float | None = None
    """Seconds since 1970."""
    text: str
    command: str = ""
    """Next command; empty: there is none."""


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """The newest verified checkpoint of the leading rank's node."""

    step: int
    node: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as it is known now. All text is safe to show."""

    run_id: str
    phase: Phase
    severity: Severity
    conditions: tuple[ConditionView, ...]
    """The most severe first."""
    reason: str = ""
    """Reason why it ended, as recorded, or as its coordinator reports it."""
    is_on_nodes: bool = True
    """True if nodes show it; otherwise all is from the record on this computer."""
    last_at: float | None = None
    """Time when its newest line was written, in seconds since 1970."""
    attempt: int | None = None
    command: str = ""
    user: str = ""
    started_at: str = ""
    restarts: int = 0
    progress: RunProgress
    """Progress without a remaining time, too, while a node is silent; with a last line where it says more than steps
    do: before the first, and while none comes."""
    output: str = ""
    """Progress read from the output, in words, where the program's own events report none."""
    nodes: tuple[NodeView, ...]
    timeline: tuple[TimelineEntry, ...]
    checkpoint: CheckpointView | None = None


def run_view(state: RunState, now: float) -> RunView:
    """The view of a run at this time, in seconds since 1970."""
    judged = verdict(state, now)
    figures = progress_of(state, judged.phase, now)
    shown, output = _shown(figures, judged, state)
    run, plan = state.run, state.plan
    parts = [node.part for node in state.members]
    read = [part.by_our_clock(part.read_at) for part in parts if part.read_at is not None]
    own = run if run and run.command else None
    return RunView(
        run_id=printable(state.run_id),
        phase=judged.phase,
        severity=judged.severity,
        conditions=condition_views(judged.conditions, state.run_id, now),
        reason=printable(judged.reason),
        is_on_nodes=run is not None,
        last_at=max(read, default=None),
        attempt=state.attempt,
        command=printable(own.command if own else " ".join(plan.command) if plan else ""),
        user=printable(run.user if run else plan.user if plan else ""),
        started_at=printable(run.started_at if run else plan.started_at if plan else ""),
        restarts=state.restarts,
        progress=shown,
        output=output,
        nodes=_nodes(state, judged, figures, now),
        timeline=timeline_of(state),
        checkpoint=_checkpoint(state),
    )


def condition_views(conditions: Iterable[Condition], run_id: str, now: float) -> tuple[ConditionView, ...]:
    """Conditions with their words."""
    shown = [(one, words(one, run_id, now)) for one in conditions]
    return tuple(
        ConditionView(
            code=one.code.value, severity=one.severity, node=printable(one.node), rank=one.rank, since=one.since,
            text=found.text, command=found.command,
        )
        for one, found in shown
    )  # fmt: skip


def _shown(known: RunProgress, judged: Verdict, state: RunState) -> tuple[RunProgress, str]:
    """The figures for a screen, and what the output reports, in words."""
    age_s = known.age_s or 0.0
    answer = not any(one.code is Code.NODE_SILENT for one in judged.conditions)
    moves = judged.phase is Phase.RUNNING and answer and not known.is_quiet
    figures = replace(
        known,
        age_s=known.age_s if state.run else None,
        remaining_s=known.remaining_s if moves else None,
        unit=printable(known.unit),
        last_line=printable(known.last_line) if known.is_quiet and judged.phase.is_active else "",
    )
    return figures, output_words(known.printed, running=moves, age_s=age_s)


def _nodes(state: RunState, judged: Verdict, figures: RunProgress, now: float) -> tuple[NodeView, ...]:
    members = state.members
    compute_s = slowest_ranks(figures.compute_s, [one.name for one in members])
    return tuple(
        node_view(one, now, phase=judged.phase, compute_s=compute_s.get(one.name), conditions=judged.conditions)
        for one in members
    )


def _checkpoint(state: RunState) -> CheckpointView | None:
    """The newest one that the leading node's lines or the record report."""
    leader = state.leader
    if leader and leader.part.checkpoint and leader.part.checkpoint.step is not None:
        return CheckpointView(step=leader.part.checkpoint.step, node=leader.name)
    newest = next(iter(state.journal.lineage()), None)
    return CheckpointView(step=newest.step, node=newest.node) if newest else None
