"""Checks of firewalls: blocked peers, open ports. gloo, NCCL and a script's own ports have no authentication: a peer of
theirs can run code.

PyTorch says so itself (its SECURITY.md, pytorch/pytorch#173909). Its store alone is behind the agents (ADR 65).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.checks.node_network import address_of, interface_to, interfaces_of, networks_of, peers_of
from orchestrator.checks.reachability import (
    Pair,
    PairState,
    attempts_by_pair,
    how_ended,
    pair_states,
    unreachable_pairs,
)
from orchestrator.specs.finding import Finding
from orchestrator.specs.firewall import UFW, Firewall, Opening, known_mark
from orchestrator.specs.firewall_commands import line_to_paste
from orchestrator.specs.network import Path
from orchestrator.specs.node_report import Examined


def blocks_peers(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No node reaches this one, and its packet filter is on, or may be."""
    shut = unreachable_pairs(fleet)
    attempts_at = _by_target(shut.attempts)
    for node in fleet:
        active = node.network.firewall_active if node.network else None
        suspected = node.name in shut.unreached and active is not False
        known = active and (shut.everywhere or node.name in shut.cut_off)
        attempts = attempts_at.get(node.name, {})
        if not attempts or not (suspected or known):
            continue
        tool = node.network.firewall if node.network and active else ""
        yield Finding.of(
            "firewall.blocks_peers",
            node.name,
            fixable=bool(tool),
            case="active" if tool else "suspected",
            address=address_of(node),
            tried=_tried(attempts),
            tool=tool,
            by_hand=_by_hand(node, fleet),
        )


def passes_one_port(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The rendezvous port is open, and no other: the ranks meet, then hang."""
    yield from _partly(fleet, PairState.ONLY_MASTER_PORT, "firewall.passes_one_port")


def blocks_master_port(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """All ports are open except the rendezvous port."""
    yield from _partly(fleet, PairState.MASTER_PORT_BLOCKED, "firewall.blocks_master_port")


def no_rule(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """ufw or firewalld is active and has no rule for the peers, and no node could test whether it lets them in."""
    tried = {there for _, there in pair_states(fleet)}
    for node in fleet:
        wall = node.network.wall if node.network else Firewall()
        openings = wall.known_openings
        if not wall.active or openings is None or node.name in tried:
            continue
        missing = [
            peer
            for peer in peers_of(node, fleet)
            if not any(opening.admits(peer, interface_to(node, peer)) for opening in openings)
        ]
        if missing:
            yield Finding.of(
                "firewall.no_rule", node.name, tool=wall.tool, missing=missing, by_hand=_by_hand(node, fleet)
            )


def open_to_the_world(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A public address without a filter: any host that reaches the ranks' ports can run code on the node."""
    for node in fleet:
        open_to = [
            (item.name, str(net.ip)) for item in interfaces_of(node) for net in networks_of(item) if net.ip.is_global
        ]
        public = [address for _, address in open_to]
        wall = node.network.wall if node.network else Firewall()
        anyone = [
            opening
            for opening in wall.known_openings or ()
            if not opening.source and any(opening.admits(address, name) for name, address in open_to)
        ]
        if public and (wall.active is not True or anyone):
            state = "lets anyone in" if anyone else "is not active" if wall.active is False else "could not be asked"
            rules = line_to_paste(
                Firewall(tool="ufw"), peers_of(node, fleet), node.network.mark if node.network else "orch"
            )
            yield Finding.of("firewall.open_to_the_world", node.name, public=public, state=state, rules=rules)


def open_to_more(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """ufw or firewalld is on, but lets more in than the inventory's machines."""
    ports = {path.port for node in fleet for path in node.paths if path.master}
    inventory = {address_of(node) for node in fleet}
    for node in fleet:
        wall = node.network.wall if node.network else Firewall()
        ours = known_mark(wall.tool, node.network.mark if node.network else "")
        theirs = [item for item in wall.known_openings or () if item.mark != ours]
        wide = [
            item
            for item in theirs
            if _reaches(item, ports)
            and (item.network.num_addresses > 1 or item.source.partition("/")[0] not in inventory)
        ]
        if wall.active and wide:
            sources = ", ".join(dict.fromkeys(opening.sources for opening in wide))
            listing = "sudo ufw status numbered" if wall.tool == UFW else "sudo firewall-cmd --list-all"
            yield Finding.of("firewall.open_to_more", node.name, tool=wall.tool, sources=sources, listing=listing)


def open_to_outsiders(fleet: Sequence[Examined]) -> tuple[str, ...]:
    """Nodes whose ports answer to machines outside the run, as their filter is off; none where all are simulated by one
    computer."""
    kernels = {node.facts.boot_id if node.facts else "" for node in fleet}
    if len(fleet) < 2 or (len(kernels) == 1 and kernels != {""}):
        return ()
    return tuple(
        node.name
        for node in fleet
        if node.network and node.network.firewall_active is False and not address_of(node).startswith("127.")
    )


_PORT = re.compile(r"[0-9]{1,5}")

CHECKS = (blocks_peers, passes_one_port, blocks_master_port, no_rule, open_to_the_world, open_to_more)


def _partly(fleet: Sequence[Examined], wanted: PairState, id: str) -> Iterator[Finding]:
    """One finding for each node that lets its peers in by some ports only."""
    states = pair_states(fleet)
    partly = {pair: tried for pair, tried in attempts_by_pair(fleet).items() if states[pair] is wanted}
    attempts_at = _by_target(partly)
    for node in fleet:
        attempts = attempts_at.get(node.name, {})
        if attempts:
            active = bool(node.network and node.network.firewall_active)
            yield Finding.of(
                id,
                node.name,
                fixable=active,
                address=address_of(node),
                tried=_tried(attempts),
                by_hand=_by_hand(node, fleet),
                tool=node.network.firewall if node.network else "",
            )


def _by_target(attempts: Mapping[Pair, tuple[Path, ...]]) -> dict[str, dict[Pair, tuple[Path, ...]]]:
    """Attempts by the name of the node that was dialled."""
    found: dict[str, dict[Pair, tuple[Path, ...]]] = {}
    for pair, tried in attempts.items():
        found.setdefault(pair[1], {})[pair] = tried
    return found


def _tried(attempts: dict[Pair, tuple[Path, ...]]) -> str:
    """`from alpha, gamma: timed out on 12355, 40123`."""
    ports = sorted({path.port for several in attempts.values() for path in several if path.ended.value != "ok"})
    few = ", ".join(map(str, ports[:3])) + (", …" if len(ports) > 3 else "")
    return f"from {', '.join(here for here, _ in attempts)}: {how_ended(attempts.values())} on {few}"


def _by_hand(node: Examined, fleet: Sequence[Examined]) -> str:
    """The rules for the peers as a line for the node's own firewall, or how to look at it where it is unknown."""
    line = ""
    if node.network and node.network.firewall_active:
        line = line_to_paste(node.network.wall, peers_of(node, fleet), node.network.mark)
    return f"or on it: {line}" if line else "on it, look: sudo iptables -S INPUT"


def _reaches(opening: Opening, ports: set[int]) -> bool:
    """Return whether it opens everything, or a port that a run would use."""
    if not opening.ports:
        return True
    for part in opening.ports.split(","):
        low, _, high = part.partition(":")
        known = _PORT.fullmatch(low) and _PORT.fullmatch(high or low)
        if known and any(int(low) <= port <= int(high or low) for port in ports):
            return True
    return False
