"""Plan of the openings of a node's firewall to the machines of the inventory: missing, stale, and how to run. Pure.

The mark tells orch's own rules. Other rules are neither relied on nor touched, since their order decides their effect.
ufw keeps equal rules once, so there an equal rule of another owner counts and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.specs.firewall import UFW, Firewall, Opening, known_mark
from orchestrator.specs.firewall_commands import close_commands, open_commands
from orchestrator.specs.network import NetworkFacts


@dataclass(frozen=True, kw_only=True)
class FirewallPlan:
    """State of one node's firewall, and commands to run there as root."""

    node: str
    wall: Firewall
    mark: str
    open_to: tuple[str, ...] = ()
    """Peers that rules let in already."""
    missing: tuple[str, ...] = ()
    """Peers without a rule."""
    stale: tuple[str, ...] = ()
    """Addresses that a rule of ours lets in, though they are no longer peers."""
    commands: tuple[tuple[str, ...], ...] = ()
    as_root: tuple[str, ...] | None = None
    """Prefix of the commands; None: root needs a password."""
    unknown: str = ""
    """Reason why the state is unknown; empty: it is known."""

    @property
    def needs_password(self) -> bool:
        """True if only root, who needs a password, can read or change it."""
        return self.as_root is None and bool(self.unknown or self.commands)


def plan_apply(node: str, network: NetworkFacts, peers: Sequence[str]) -> FirewallPlan:
    """Let each of these addresses in, and remove our rules for all others."""
    wall, mark = network.wall, network.mark
    ours = _ours(wall, mark)
    held = {
        opening.source
        for opening in (wall.openings or () if wall.tool == UFW else ours)
        if not opening.ports and not opening.interface
    }
    stale = [opening for opening in ours if opening.source not in peers]
    ours_in = {peer: {opening.place for opening in ours if opening.source == peer} for peer in peers}
    # Where a tool has several chains that refuse, a rule in each.
    missing = tuple(peer for peer in peers if (set(wall.places) - ours_in[peer] if wall.places else peer not in held))
    closing = [argv for opening in stale for argv in close_commands(wall.tool, opening)]
    opening = [
        argv
        for peer in missing
        for argv in open_commands(
            replace(wall, places=tuple(place for place in wall.places if place not in ours_in[peer])), peer, mark
        )
    ]
    return FirewallPlan(
        node=node,
        wall=wall,
        mark=mark,
        open_to=tuple(peer for peer in peers if peer not in missing),
        missing=missing if wall.active else (),
        stale=tuple(opening.source for opening in stale),
        commands=(*closing, *(opening if wall.active else ())),
        as_root=network.as_root,
        unknown=_unknown(network),
    )


def plan_remove(node: str, network: NetworkFacts) -> FirewallPlan:
    """Remove every rule of ours, and nothing else."""
    ours = _ours(network.wall, network.mark)
    return FirewallPlan(
        node=node,
        wall=network.wall,
        mark=network.mark,
        stale=tuple(dict.fromkeys(opening.source for opening in ours)),
        commands=tuple(argv for opening in ours for argv in close_commands(network.wall.tool, opening)),
        as_root=network.as_root,
        unknown=_unknown(network),
    )


def _ours(wall: Firewall, mark: str) -> list[Opening]:
    return [opening for opening in wall.openings or () if opening.mark == known_mark(wall.tool, mark)]


def _unknown(network: NetworkFacts) -> str:
    wall = network.wall
    if wall.active is False and (wall.openings is not None or not wall.tool or network.as_root is None):
        return ""
    if network.as_root is None:
        return f"the rules of {wall.tool or 'its firewall'} are root's to read, and sudo asks for a password there"
    return "" if wall.openings is not None else f"the rules of {wall.tool or 'its firewall'} could not be read"
