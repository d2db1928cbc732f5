"""The state of machines and of the run on them, from facts as they come, for a screen that shows it again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from orchestrator.render.printable import printable
from orchestrator.specs.seen import seen_now
from orchestrator.state.condition import Code, Condition
from orchestrator.state.conditions import silent_since
from orchestrator.state.facts import ContainerSeen, Fact, RunFound
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import NodeState, RunState, TailLine
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.timeline import ENTRIES, TimelineEntry
from orchestrator.watch.views import has_failed, node_view, run_view
from orchestrator.watch.words import words

MACHINE = ("last_answer_at", "silent_since", "error", "usage", "usage_at", "cpu_history", "gpu_history")
"""Fields of a node that are about the machine, and not about a run on it."""


class LiveState:
    """The state of the run that is watched. One thread at a time may use it."""

    def __init__(self, names: Iterable[str], *, clock: Callable[[], float] = seen_now) -> None:
        """`clock`: seconds since 1970, by the clock of the facts."""
        self._names, self._clock = tuple(names), clock
        self._state = RunState(run_id="")
        self._looked = False
        self._faults: deque[TimelineEntry] = deque(maxlen=ENTRIES)
        """Faults of nodes and containers; those of ranks are in the state of the run."""

    def watch(self, names: Iterable[str]) -> None:
        """Show these nodes, in this order, and no others."""
        self._names = tuple(names)

    def add(self, event: Fact | RunFound) -> None:
        """Take a fact into account, or another run."""
        if isinstance(event, RunFound):
            self._find(event)
            return
        node = self._state.nodes.get(getattr(event, "node", ""))
        was_silent = node is not None and node.silent_since is not None
        apply(self._state, event)
        self._note(event, was_silent=was_silent)

    def _find(self, found: RunFound) -> None:
        self._looked = True
        known = self._state.run_id
        if known and not found.state and found.unreachable:
            return  # the run may be on a node that does not answer
        state = found.state or RunState(run_id="")
        if state.run_id != known:
            self._faults.clear()
        for name in self._names:
            if (old := self._state.nodes.get(name)) and (old.last_answer_at or old.silent_since):
                node = state.nodes.setdefault(name, NodeState(name=name))
                for field in MACHINE:
                    setattr(node, field, getattr(old, field))
        self._state = state

    def _note(self, fact: Fact, *, was_silent: bool) -> None:
        node = self._state.nodes.get(getattr(fact, "node", ""))
        if node is None:
            return
        if node.silent_since is not None and not was_silent:
            self._fault(fact.seen, node, Code.NODE_SILENT, error=node.error)
        elif was_silent and node.silent_since is None:
            self._faults.append(
                TimelineEntry(at=fact.seen, node=node.name, text=printable(f"{node.name} answers again"))
            )
        if self._state.journal.stop:
            return  # its containers are to end
        ended = fact.facts if isinstance(fact, ContainerSeen) else None
        if isinstance(fact, ContainerSeen) and ended is None:
            self._fault(fact.seen, node, Code.CONTAINER_MISSING)
        elif ended and has_failed(ended):
            self._fault(fact.seen, node, Code.CONTAINER_FAILED,
                        exit_code=ended.exit_code, oom_killed=ended.oom_killed, error=ended.error)  # fmt: skip

    def _fault(self, at: float, node: NodeState, code: Code, **values: Any) -> None:
        shown = words(Condition(code=code, severity="warning", node=node.name, values=values), self._state.run_id)
        self._faults.append(TimelineEntry(at=at, node=node.name, text=shown.text))

    # ── Views ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def view(self) -> FleetView:
        """All that is known now."""
        now, state = self._clock(), self._state
        run = run_view(state, now) if state.run_id else None
        members = {node.name: shown for node, shown in zip(state.members, run.nodes, strict=True)} if run else {}
        nodes = (members.get(name) or node_view(self._node(name), now) for name in self._names)
        faults = sorted((*self._faults, *(run.timeline if run else ())), key=lambda one: one.at)
        return FleetView(at=now, looked=self._looked, run=run, nodes=tuple(nodes), faults=tuple(faults[-ENTRIES:]))

    def _node(self, name: str) -> NodeState:
        return self._state.nodes.get(name) or NodeState(name=name)

    def tail(self, name: str, after: int = 0) -> list[TailLine]:
        """The newest log lines of a node, after the line with this number; all of them where their numbers begin again,
        with another attempt. Their text is safe to show."""
        lines = self._node(name).part.tail
        first = after if lines and lines[-1].number >= after else 0
        return [replace(one, text=printable(one.text)) for one in lines if one.number > first]

    def silent(self) -> frozenset[str]:
        """Names of the nodes that do not answer now."""
        now = self._clock()
        return frozenset(name for name in self._names if silent_since(self._node(name), now) is not None)

    @property
    def settled(self) -> bool:
        """True if the nodes were asked for runs, and each has answered or is known not to."""
        nodes = [self._node(name) for name in self._names]
        return self._looked and all(node.usage or node.silent_since is not None for node in nodes)
