"""Which nodes have reached the master: before the first rank has said a word, the sockets tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.probe import has_reached
from orchestrator.specs.plan import Plan

TIMEOUT_S = 6.0


def arrived(nodes: Mapping[str, Node], plan: Plan, names: Sequence[str]) -> list[str]:
    """Those of `names` whose supervisor is connected to that of the master. On loopback nobody can tell: none."""
    if plan.master_addr.startswith("127."):
        return []
    outcomes = fan_out(
        names, lambda name: has_reached(nodes[name], plan.master_addr, plan.supervisor_port), timeout_s=TIMEOUT_S
    )
    return [outcome.item for outcome in outcomes if outcome.result]
