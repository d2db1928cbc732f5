"""Commands that open a node's firewall to the machines of the inventory, and that close it again. Pure.

Rules of ours are known by their mark. Others' are neither counted on nor touched: where they stand among those that
refuse is theirs to know. ufw alone holds equal rules once, so there a rule of somebody else's is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.specs.firewall import UFW, Firewall, Opening, close_commands, known_mark, open_commands
from orchestrator.specs.network import NetworkFacts


@dataclass(frozen=True, kw_only=True)
class FirewallPlan:
    """One node: how it is, and what would be run there as root."""

    node: str
    wall: Firewall
    mark: str
    open_to: tuple[str, ...] = ()
    """Peers that rules let in already."""
    missing: tuple[str, ...] = ()
    """Peers for which there is none."""
    stale: tuple[str, ...] = ()
    """Addresses that a rule of ours lets in, though they are no peer any more."""
    commands: tuple[tuple[str, ...], ...] = ()
    as_root: tuple[str, ...] | None = None
    """Prefix of the commands; None: root needs a password."""
    unknown: str = ""
    """Why nothing can be said."""


def plan_apply(node: str, network: NetworkFacts, peers: Sequence[str]) -> FirewallPlan:
    """Let each of these addresses in, and no longer those that a rule of ours lets in besides."""
    wall, mark = network.wall, network.mark
    ours = _ours(wall, mark)
    held = {opening.source for opening in (wall.openings or () if wall.tool == UFW else ours) if not opening.ports}
    stale = [opening for opening in ours if opening.source not in peers]
    missing = tuple(peer for peer in peers if not _is_held(peer, wall, ours, held))
    closing = [argv for opening in stale for argv in close_commands(wall.tool, opening)]
    opening = [argv for peer in missing for argv in open_commands(_lacking(wall, peer, ours), peer, mark)]
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
    """Take away every rule of ours, and nothing else."""
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


def _is_held(peer: str, wall: Firewall, ours: Sequence[Opening], held: set[str]) -> bool:
    """Where a tool has several chains that refuse, a rule in each."""
    if wall.places:
        return set(wall.places) <= {opening.place for opening in ours if opening.source == peer}
    return peer in held


def _lacking(wall: Firewall, peer: str, ours: Sequence[Opening]) -> Firewall:
    """The same, with those of its places alone that hold no rule for this peer."""
    there = {opening.place for opening in ours if opening.source == peer}
    places = tuple(place for place in wall.places if place not in there)
    return Firewall(tool=wall.tool, active=wall.active, openings=wall.openings, places=places)


def _unknown(network: NetworkFacts) -> str:
    wall = network.wall
    if wall.active is False and (wall.openings is not None or not wall.tool or network.as_root is None):
        return ""
    if network.as_root is None:
        return f"the rules of {wall.tool or 'its firewall'} are root's to read, and sudo asks for a password there"
    return "" if wall.openings is not None else f"the rules of {wall.tool or 'its firewall'} could not be read"
