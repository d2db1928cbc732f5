"""Which interface and which port a run uses."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.specs.errors import PortTakenError, PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec

PORTS_TRIED = 64


def interface_of(node: NodeSpec, facts: NodeFacts, peers: Sequence[NodeFacts]) -> str:
    """The interface that carries this node's traffic to its peers: the inventory's word, else the route's.

    Guessing by name failed others twice in both directions (ray-project/ray#28633, #30333, #31824, #42652). Empty where
    the node was not asked.
    """
    if node.interface:
        return node.interface
    if facts.assumed:
        return ""
    others = [peer.address for peer in peers if peer.name != node.name and not _unasked(facts, peer)]
    if not others and len(peers) > 1:
        return ""
    if not others or all(address.startswith("127.") for address in others):
        return "lo"
    used = {facts.routes[address].interface for address in others if address in facts.routes}
    unknown = [address for address in others if address not in facts.routes]
    if unknown:
        raise PreflightError(
            f"it knows no way to {', '.join(unknown)}", node=node.name, hint=f"on it, try: ip route get {unknown[0]}"
        )
    if len(used) > 1:
        ways = ", ".join(f"{address} by {facts.routes[address].interface}" for address in others)
        raise PreflightError(
            f"it reaches its peers by different interfaces ({ways}); gloo and NCCL use one",
            node=node.name,
            hint=f"choose one in the inventory: nodes.{node.name}.interface",
        )
    return used.pop()


def _unasked(facts: NodeFacts, peer: NodeFacts) -> bool:
    """Whether the way to this peer could not be asked for, as its name has no address (`--dry-run`)."""
    return peer.assumed and peer.address not in facts.routes and not peer.address.startswith("127.")


def choose_ports(master: NodeFacts, wanted: int, *, exactly: bool = False) -> tuple[int, int, str]:
    """The first free port from the wanted one on, for torchrun; the next free one, for the supervisors; and a note
    where the first is not the one that was wanted. PortTakenError where it has to be that very one."""
    if exactly and wanted in master.ports_in_use:
        raise PortTakenError(wanted, node=master.name)
    tried = range(wanted, min(wanted + PORTS_TRIED, 65536))
    free = [port for port in tried if port not in master.ports_in_use][:2]
    if len(free) == 2:
        note = f"port {wanted} is taken on {master.name}: using {free[0]}" if free[0] != wanted else ""
        return free[0], free[1], note
    raise PreflightError(
        f"ports {wanted} to {min(wanted + PORTS_TRIED - 1, 65535)} are all taken",
        node=master.name,
        hint="set another master_port",
    )
