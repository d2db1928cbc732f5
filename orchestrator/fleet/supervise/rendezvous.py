"""Who of a run has come to the master while it begins. A node that stays away is named, not waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from contract.events import RankStarted
from orchestrator.fleet.supervise.arrivals import arrived
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunEvent, RunLine

BEHIND_S = 20.0
"""How long after the newest arrival the others may take. A slow disk loads torch that much later."""
NOBODY_S = 60.0
"""How long the first may take."""
ASK_EVERY_S = 1.0


class RollCall:
    """`hear` is to be called with everything that happens; it raises once somebody is overdue."""

    def __init__(self, nodes: Mapping[str, Node], plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes, self._plan, self._clock = nodes, plan, clock
        self.here: list[str] = []
        """In order of arrival."""
        self._asked = self._newest = clock()

    def hear(self, happening: RunEvent) -> list[str]:
        """The nodes that have come since the last call.

        NodeUnreachableError: of the others, as soon as they are too far behind.
        """
        new = [node for node in self._arrivals(happening) if node not in self.here]
        now = self._clock()
        if new:
            self.here += new
            self._newest = now
        missing = [part.node for part in self._plan.nodes if part.node not in self.here]
        if missing and now - self._newest > (BEHIND_S if self.here else NOBODY_S):
            raise self._overdue(missing)
        return new

    def _arrivals(self, happening: RunEvent) -> list[str]:
        if isinstance(happening, RunLine):
            # torchrun starts a rank only when every agent has met the others
            return [part.node for part in self._plan.nodes] if isinstance(happening.event, RankStarted) else []
        now = self._clock()
        if now - self._asked < ASK_EVERY_S:
            return []
        self._asked = now
        missing = [part.node for part in self._plan.nodes if part.node not in self.here]
        return arrived(self._nodes, self._plan, missing)

    def _overdue(self, missing: list[str]) -> NodeUnreachableError:
        plan = self._plan
        master = f"{plan.master} ({plan.master_addr}:{plan.supervisor_port})"
        others = f"after {', '.join(self.here)}" if self.here else "after the start"
        return NodeUnreachableError(
            f"{', '.join(missing)} did not reach {master} within {BEHIND_S if self.here else NOBODY_S:.0f} s {others}",
            hint="orch doctor: it tries every port both ways, and names the firewall, the cable or the route",
        )
