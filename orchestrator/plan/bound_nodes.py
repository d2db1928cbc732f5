"""The plan of a run on a cluster once its scheduler has chosen the nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.specs.plan import Plan

FIRST_PORT, PORTS = 20000, 5000
"""Ports below the range from which kernels take ports for connections, 32768: agents add up to 1000 to a port."""


def port_of(run_id: str) -> int:
    """Port of torchrun's rendezvous; the agents' is the next one. Runs that share a machine rarely have the same."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return FIRST_PORT + 2 * (int.from_bytes(digest[:4], "big") % PORTS)


def bound_plan(plan: Plan, attempt: int, names: Sequence[str], addresses: Sequence[str], bound_at: str) -> Plan:
    """The plan with these nodes in order of node_rank, as the attempt that they were given to. Unchanged where their
    number is another one. `bound_at`: ISO 8601 with zone."""
    if len(names) != len(plan.nodes):
        return plan
    known = (*addresses, *("",) * len(names))
    chosen = zip(plan.nodes, names, known, strict=False)
    nodes = tuple(replace(part, node=name, address=address or part.address) for part, name, address in chosen)
    return replace(
        plan,
        attempt=attempt,
        started_at=bound_at or plan.started_at,
        master=names[0],
        master_addr=known[0] or plan.master_addr,
        nodes=nodes,
    )
