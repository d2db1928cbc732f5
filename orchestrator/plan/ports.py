"""Choice of the ports of an attempt: torchrun's rendezvous, and the agents'."""

from __future__ import annotations

from zlib import crc32

from orchestrator.specs.errors import PortTakenError, PreflightError
from orchestrator.specs.facts import NodeFacts

PORTS_TRIED = 64
AGENTS_PORTS = 4096
"""Ports among which attempts choose their agents' one."""


def choose_ports(master: NodeFacts, wanted: int, attempt: str, *, exactly: bool = False) -> tuple[int, int, str]:
    """The first free port from the wanted one on, for torchrun; one for the agents; and a note where the first is not
    the one that was wanted. PortTakenError where it has to be that very one.

    The agents' port depends on the name of the attempt: of two runs that are planned before either of them listens,
    each has another one. For torchrun's port, rank 0's agent takes care of this (`trainer.agent.rendezvous_port`).
    """
    if exactly and wanted in master.ports_in_use:
        raise PortTakenError(wanted, node=master.name)
    own = wanted + 1 + crc32(attempt.encode()) % AGENTS_PORTS
    free, of_agents = (
        [port for port in range(first, min(first + PORTS_TRIED, 65536)) if port not in master.ports_in_use]
        for first in (wanted, own if own < 65536 else wanted + 1)
    )
    if free and (others := [port for port in of_agents if port != free[0]]):
        note = f"port {wanted} is taken on {master.name}: using {free[0]}" if free[0] != wanted else ""
        return free[0], others[0], note
    raise PreflightError(
        f"ports {wanted} to {min(wanted + PORTS_TRIED - 1, 65535)} are all taken",
        node=master.name,
        hint="set another master_port",
    )
