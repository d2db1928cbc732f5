"""How far each node has come: image checked, container started, reached the master, joined, first step; or that it is
left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.text import Text

from contract.events import GroupJoined, RankLeftOut, RankStarted, StepDone
from orchestrator.render.console import colour_of
from orchestrator.render.printable import printable
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunEvent, RunLine

IMAGE = "image checked"
CONTAINER = "container started"
MASTER = "reached the master"
JOINED = "joined"
STEP = "first step"
PHASES = (IMAGE, CONTAINER, MASTER, JOINED, STEP)


@dataclass
class Phases:
    """One line per node. `plan` says which nodes; `clock` counts from the start of the command."""

    plan: Plan
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    reached: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds from the start to each phase, by node and phase."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Reason, by node, why it trains nothing."""
    idle: set[int] = field(default_factory=set)
    """Ranks that were left out."""

    def __post_init__(self) -> None:
        self.began = self.began or self.clock()
        self.reached = {part.node: {} for part in self.plan.nodes}

    def reach(self, node: str, phase: str) -> bool:
        """Note a phase; False where it was noted before."""
        phases = self.reached[node]
        if phase in phases:
            return False
        phases[phase] = self.clock() - self.began
        return True

    def heard(self, run_event: RunEvent) -> list[tuple[str, str]]:
        """The (node, phase) pairs that a line of a rank shows, whether they are noted or not."""
        if not isinstance(run_event, RunLine):
            return []
        match run_event.event:
            case RankStarted():  # torchrun starts a rank only when every agent has met the others
                return [(run_event.node, MASTER)]
            case GroupJoined():
                return [(run_event.node, MASTER), (run_event.node, JOINED)]
            case StepDone():  # rank 0 reports a step for all
                return [(node, phase) for phase in (MASTER, JOINED, STEP) for node in self.training]
        return []

    def leave_out(self, run_event: RunEvent) -> str:
        """The node that has none but idle ranks since this line; empty otherwise."""
        event = run_event.event if isinstance(run_event, RunLine) else None
        if not isinstance(run_event, RunLine) or not isinstance(event, RankLeftOut):
            return ""
        if event.rank is None or run_event.node in self.left_out:
            return ""
        self.idle.add(event.rank)
        part = next(part for part in self.plan.nodes if part.node == run_event.node)
        if not self.idle.issuperset(range(part.first_rank, part.first_rank + part.nproc_per_node)):
            return ""
        self.left_out[run_event.node] = printable(event.why or "")
        return run_event.node

    @property
    def training(self) -> list[str]:
        """The nodes that are not left out."""
        return [node for node in self.reached if node not in self.left_out]

    @property
    def complete(self) -> bool:
        """Whether every node that trains has trained a step."""
        return all(STEP in self.reached[node] for node in self.training)

    def line(self, node: str) -> Text:
        """`1 beta   image ✓  container ✓  master ✓  5/5 joined ✓  …`"""
        rank = next(part.node_rank for part in self.plan.nodes if part.node == node)
        width = max(len(part.node) for part in self.plan.nodes)
        text = Text.assemble((f"[{rank} {node:<{width}}]", colour_of(rank)))
        for phase in PHASES:
            if node in self.left_out and phase == STEP:
                text.append(f"  left out: {self.left_out[node]}", "cyan")
                break
            done = phase in self.reached[node]
            text.append(f"  {'✓' if done else '·'} {self._words(phase)}", "" if done else "dim")
        return text

    def table(self) -> Text:
        """All nodes, in order of rank."""
        return Text("\n").join(self.line(part.node) for part in self.plan.nodes)

    def waiting(self) -> str:
        """Nodes that are behind the others, in words; empty where all are level."""
        stage = {node: len(self.reached[node]) for node in self.training}
        ahead = max(stage.values())
        behind = [node for node, number in stage.items() if number < ahead]
        if not behind:
            return ""
        return f"waiting for {', '.join(behind)}: not yet {self._words(PHASES[min(stage[n] for n in behind)])}"

    def _words(self, phase: str) -> str:
        joined = sum(JOINED in phases for phases in self.reached.values())
        return f"{joined}/{self.plan.nnodes} joined" if phase == JOINED else phase
