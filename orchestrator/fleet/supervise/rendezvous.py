"""The nodes of a run that have reached the master while it begins. A node that stays away is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.probe import has_reached
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import Replanned, RunLine
from orchestrator.state.run_state import RunState

BEHIND_S = 20.0
"""Seconds that the others may take after the newest arrival. A slow disk loads torch that much later."""
FIRST_S = 60.0
"""Seconds that the first may take."""
POLL_EVERY_S, POLL_TIMEOUT_S = 1.0, 6.0


class Arrivals:
    """Polls the nodes' sockets until each has reached the master: they are known before the first rank has started."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        plan: Plan,
        state: RunState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nodes`: those whose sockets are looked at; without any, only the start of a rank says that all have met."""
        self.state = state
        self._nodes, self._plan, self._clock = nodes, plan, clock
        self.here: list[str] = []
        """Nodes in order of arrival."""
        self._polled = clock()

    @property
    def missing(self) -> list[str]:
        return [part.node for part in self._plan.nodes if part.node not in self.here]

    def hear(self, update: object) -> list[str]:
        """Return the nodes that have arrived since the last call; to be called with all events of a run."""
        if isinstance(update, Replanned):
            self._plan, self.here = update.plan, []
            return []  # the state is still that of the attempt before
        is_line, new = isinstance(update, RunLine), list[str]()
        if not self.missing or (isinstance(update, RunLine) and update.rank is None):
            return new
        if any(one.part.ranks for one in self.state.members):
            new = self.missing  # torchrun starts a rank only when every agent has met the others
        elif not is_line and self._nodes and self._clock() - self._polled >= POLL_EVERY_S:
            self._polled = self._clock()
            new = self._connected(self.missing)
        self.here += new
        return new

    def _connected(self, names: Sequence[str]) -> list[str]:
        """Nodes with a connection to the master's agent; none on loopback, where it cannot be seen."""
        master, port = self._plan.master_addr, self._plan.supervisor_port
        if master.startswith("127."):
            return []
        outcomes = fan_out(names, lambda name: has_reached(self._nodes[name], master, port), timeout_s=POLL_TIMEOUT_S)
        return [outcome.item for outcome in outcomes if outcome.result]


class Rendezvous(Arrivals):
    """Raises once a node is overdue."""

    def __init__(
        self, nodes: Mapping[str, Node], plan: Plan, state: RunState, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(nodes, plan, state, clock)
        self._newest = clock()

    def hear(self, update: object) -> list[str]:
        """Return the nodes that have arrived since the last call.

        NodeUnreachableError: names the other nodes as soon as they are too late.
        """
        new, now, plan = super().hear(update), self._clock(), self._plan
        if new:
            self._newest = now
        limit_s, others = (BEHIND_S, ", ".join(self.here)) if self.here else (FIRST_S, "the start")
        if self.missing and now - self._newest > limit_s:
            raise NodeUnreachableError(
                f"{', '.join(self.missing)} did not reach {plan.master} ({plan.master_addr}:{plan.supervisor_port}) "
                f"within {limit_s:.0f} s after {others}",
                hint="orch doctor: it tries every port both ways, and names the firewall, the cable or the route",
            )
        return new
