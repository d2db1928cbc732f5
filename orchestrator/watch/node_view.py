"""View of a node: its state, what it uses, and why the others wait for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from contract.resources import ResourceUsage
from orchestrator.checks.stragglers import SWAP_MIB
from orchestrator.render.printable import printable
from orchestrator.specs.run import ContainerFacts, State
from orchestrator.state.condition import Code, Condition
from orchestrator.state.conditions import silent_since
from orchestrator.state.phase import STOPPED_CODE, Phase
from orchestrator.state.run_state import NodeState

SLOW = {
    Code.SLOW_COMPUTE: "compute",
    Code.SLOW_DATA: "data",
    Code.SLOW_LINK: "link",
    Code.THROTTLED: "throttled",
    Code.SWAPPING: "swapping",
}
"""Why the others wait for a node, in a word."""


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
    """Why it is silent, or how its container ended."""
    slow: str = ""
    """Why the others wait for it: compute, data, link, throttled, swapping."""
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
    """Whether a container has failed: one that was asked to stop, and did, has not."""
    return facts.state is State.FAILED and facts.exit_code != STOPPED_CODE


def slowest_ranks(compute_s: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    """Seconds of the slowest rank of each node. `compute_s`: by `NODE` or `NODE.LOCAL_RANK`."""
    slowest: dict[str, float] = {}
    for label, seconds in compute_s.items():
        name = label if label in names else label.rpartition(".")[0]
        if name in names:
            slowest[name] = max(seconds, slowest.get(name, 0.0))
    return slowest
