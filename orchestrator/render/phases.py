"""Phase of each node: image checked, container started, reached the master, joined, first step; or that it is
left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.text import Text

from orchestrator.render.console import colour_of
from orchestrator.render.printable import printable
from orchestrator.specs.plan import Plan
from orchestrator.state.run_state import AttemptPart, RunState

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

    def shown(self, state: RunState) -> Iterator[tuple[str, str]]:
        """The (node, phase) pairs that the state of the run shows, whether they are noted or not."""
        if state.leader and (newest := state.leader.part.progress) and newest.step:  # it reports a step for all
            yield from ((node, phase) for phase in (MASTER, JOINED, STEP) for node in self.training)
        for name in self.reached:
            part = state.nodes[name].part if name in state.nodes else AttemptPart()
            if part.ranks:  # torchrun starts a rank only when every agent has met the others
                yield name, MASTER
            if part.joined:
                yield name, JOINED
            for position in (rank.position for rank in part.ranks.values()):
                # Of a program that reports nothing itself, torch's optimizer steps and collectives are counted.
                if position and position.steps_per_s is not None and position.step:
                    if position.collectives_per_step:  # all make it; a rank may have ended before it reports a position
                        yield from ((one, phase) for one in self.training for phase in (MASTER, JOINED, STEP))
                    yield from ((name, phase) for phase in (MASTER, STEP))

    def leave_out(self, state: RunState) -> list[str]:
        """The nodes of which all ranks are idle since the last call."""
        new = []
        for part in self.plan.nodes:
            known = state.nodes[part.node].part.ranks if part.node in state.nodes else {}
            ranks = [known.get(rank) for rank in range(part.first_rank, part.first_rank + part.nproc_per_node)]
            if part.node not in self.left_out and all(rank and rank.stage == "left_out" for rank in ranks):
                self.left_out[part.node] = printable(next(rank.left_out for rank in ranks if rank))
                new.append(part.node)
        return new

    @property
    def training(self) -> list[str]:
        """The nodes that are not left out."""
        return [node for node in self.reached if node not in self.left_out]

    @property
    def complete(self) -> bool:
        """True if every node that trains has trained a step."""
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
