"""What firewalls keep out, and whom they let in. The rendezvous has no authentication: who reaches it can run code.

PyTorch says so itself (its SECURITY.md), and its store listens on every address of the node (pytorch/pytorch#173909).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.checks.node_network import address_of, interfaces_of, networks_of, peers_of
from orchestrator.checks.reachability import how_ended
from orchestrator.checks.ways import Pair, Way, shut_of, tries_of, ways_of
from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.firewall import Firewall, Opening, known_mark, line_to_paste
from orchestrator.specs.network import Path
from orchestrator.specs.node_report import Examined


def blocks_peers(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Nobody reaches a node, and its packet filter is on, or may be."""
    shut = shut_of(fleet)
    for node in fleet:
        active = node.network.firewall_active if node.network else None
        suspected = node.name in shut.walled and active is not False
        known = active and (shut.everywhere or node.name in shut.cut_off)
        tries = {pair: tried for pair, tried in shut.tries.items() if pair[1] == node.name}
        if not tries or not (suspected or known):
            continue
        tool = node.network.firewall if node.network and active else ""
        yield Finding(
            id="firewall.blocks_peers",
            severity=Severity.ERROR,
            node=node.name,
            message=f"no peer reaches {node.name} ({address_of(node)}): {_tried(tries)}",
            cause=f"{tool} is active there and has no rule for them" if tool else "most likely a firewall on it",
            fix=_fix(node, fleet),
            auto_fix=_open_ports(node),
        )


def passes_one_port(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The rendezvous port was opened, and nothing else: the ranks meet, then hang."""
    yield from _partly(
        fleet,
        Way.RANDOM_SHUT,
        id="firewall.passes_one_port",
        message="lets its peers reach some ports, not all: {tried}",
        cause="a firewall that passes the rendezvous port alone; gloo and NCCL talk on ports of the kernel's choice",
    )


def blocks_master_port(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """All ports pass but the rendezvous port: a rule for this very one."""
    yield from _partly(
        fleet,
        Way.MASTER_SHUT,
        id="firewall.blocks_master_port",
        message="lets its peers reach every port but the rendezvous port: {tried}",
        cause="a firewall rule for this very port; torchrun meets there",
    )


def no_rule(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A filter is on, holds no rule for the peers, and nobody could try whether it lets them in."""
    tried = {there for _, there in ways_of(fleet)}
    for node in fleet:
        wall = node.network.wall if node.network else Firewall()
        if not wall.active or wall.openings is None or node.name in tried:
            continue
        missing = [peer for peer in peers_of(node, fleet) if not _admitted(peer, wall)]
        if missing:
            yield Finding(
                id="firewall.no_rule",
                severity=Severity.WARNING,
                node=node.name,
                message=f"{wall.tool} is active on {node.name} and holds no rule for {', '.join(missing)}",
                cause="nobody could try whether they get through, as no listener could be started there",
                fix=_fix(node, fleet),
                auto_fix=_open_ports(node),
            )


def open_to_the_world(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A public address, and no filter before it: whoever reaches the rendezvous port can run code there."""
    for node in fleet:
        public = [str(net.ip) for item in interfaces_of(node) for net in networks_of(item) if net.ip.is_global]
        wall = node.network.wall if node.network else Firewall()
        anyone = [opening for opening in wall.openings or () if not opening.source and not opening.ports]
        if public and (wall.active is not True or anyone):
            state = "lets anyone in" if anyone else "is not active" if wall.active is False else "could not be asked"
            yield Finding(
                id="firewall.open_to_the_world",
                severity=Severity.WARNING,
                node=node.name,
                message=f"{node.name} has the public address {', '.join(public)}, and its firewall {state}",
                cause=_WHY_CLOSED,
                fix=_close_fix(node, fleet),
            )


def open_to_more(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The filter is on, but lets more in than the inventory's machines."""
    ports = {path.port for node in fleet for path in node.paths if path.master}
    inventory = {address_of(node) for node in fleet}
    for node in fleet:
        wall = node.network.wall if node.network else Firewall()
        ours = known_mark(wall.tool, node.network.mark if node.network else "")
        theirs = [item for item in wall.openings or () if item.mark != ours]
        wide = [item for item in theirs if _reaches(item, ports) and _beyond(item, inventory)]
        if wall.active and wide:
            sources = ", ".join(dict.fromkeys(opening.source or "anyone" for opening in wide))
            yield Finding(
                id="firewall.open_to_more",
                severity=Severity.INFO,
                node=node.name,
                message=f"{wall.tool} on {node.name} lets more than the inventory's machines in: {sources}",
                cause=_WHY_CLOSED,
                fix=f"orch firewall apply --nodes {node.name}; then take the wider rule away: {_list(wall)}",
            )


_PORT = re.compile(r"[0-9]{1,5}")
_WHY_CLOSED = "torch's rendezvous has no authentication: who reaches its port can run code as the training's user"

CHECKS = (blocks_peers, passes_one_port, blocks_master_port, no_rule, open_to_the_world, open_to_more)


def _partly(fleet: Sequence[Examined], wanted: Way, *, id: str, message: str, cause: str) -> Iterator[Finding]:
    """One finding for each node that lets its peers in by some ports only."""
    ways = ways_of(fleet)
    for node in fleet:
        into = {pair: tried for pair, tried in tries_of(fleet).items() if pair[1] == node.name}
        tries = {pair: tried for pair, tried in into.items() if ways[pair] is wanted}
        if tries:
            yield Finding(
                id=id,
                severity=Severity.ERROR,
                node=node.name,
                message=f"{node.name} ({address_of(node)}) " + message.format(tried=_tried(tries)),
                cause=cause,
                fix=_fix(node, fleet),
                auto_fix=_open_ports(node),
            )


def _tried(tries: dict[Pair, tuple[Path, ...]]) -> str:
    """`from alpha, gamma: timed out on 12355, 40123`."""
    ports = sorted({path.port for several in tries.values() for path in several if path.ended.value != "ok"})
    few = ", ".join(map(str, ports[:3])) + (", …" if len(ports) > 3 else "")
    return f"from {', '.join(here for here, _ in tries)}: {how_ended(tries.values())} on {few}"


def _fix(node: Examined, fleet: Sequence[Examined]) -> str:
    """Ours, and the same by hand with the node's own tool."""
    line = ""
    if node.network and node.network.firewall_active:
        line = line_to_paste(node.network.wall, peers_of(node, fleet), node.network.mark)
    ours = f"orch firewall apply --nodes {node.name}"
    return f"{ours}; or on it: {line}" if line else f"{ours}; on it, look: sudo iptables -S INPUT"


def _open_ports(node: Examined) -> Fix | None:
    if not (node.network and node.network.firewall_active):
        return None
    what = f"let the inventory's machines in through {node.network.firewall} on {node.name}"
    return Fix(what=what, orch=("firewall", "apply", "--nodes", node.name, "--yes"))


def _close_fix(node: Examined, fleet: Sequence[Examined]) -> str:
    peers = peers_of(node, fleet)
    first = line_to_paste(Firewall(tool="ufw"), peers, node.network.mark if node.network else "orch")
    return f"on it: sudo ufw allow OpenSSH; {first}; sudo ufw enable"


def _admitted(address: str, wall: Firewall) -> bool:
    return any(opening.admits(address) for opening in wall.openings or ())


def _reaches(opening: Opening, ports: set[int]) -> bool:
    """Whether it opens everything, or a port that a run would use."""
    if not opening.ports:
        return True
    for part in opening.ports.split(","):
        low, _, high = part.partition(":")
        known = _PORT.fullmatch(low) and _PORT.fullmatch(high or low)
        if known and any(int(low) <= port <= int(high or low) for port in ports):
            return True
    return False


def _beyond(opening: Opening, inventory: set[str]) -> bool:
    if opening.network.num_addresses > 1:
        return True
    return opening.source.partition("/")[0] not in inventory


def _list(wall: Firewall) -> str:
    return {
        "ufw": "sudo ufw status numbered",
        "firewalld": "sudo firewall-cmd --list-all",
        "nftables": "sudo nft -a list ruleset",
    }.get(wall.tool, "sudo iptables -S INPUT")
