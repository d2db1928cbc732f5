"""What does not get from one node to another, where no firewall that is known explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.checks.node_network import address_of, interface_towards_peers
from orchestrator.checks.ways import Way, shut_of, ways_of
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.network import Path
from orchestrator.specs.node_report import Examined


def no_pair_reaches(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No node reaches any other, and no firewall of theirs is known to be on."""
    shut = shut_of(fleet)
    if shut.everywhere and not any(_filters(node) for node in fleet):
        names = [node.name for node in fleet if node.paths]
        yield Finding(
            id="network.isolated",
            severity=Severity.ERROR,
            node=", ".join(names),
            message=f"no node reaches any other: {', '.join(names)} ({how_ended(shut.tries.values())})",
            cause="a Wi-Fi or a switch that keeps its guests apart, or a firewall on each node",
            fix="turn off client isolation (guest network) in the router; then: orch firewall show",
        )


def cut_off(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """One node reaches nobody and is reached by nobody, while the others reach each other."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.cut_off and not _filters(node):
            tries = [tries for pair, tries in shut.tries.items() if node.name in pair]
            yield Finding(
                id="network.cut_off",
                severity=Severity.ERROR,
                node=node.name,
                message=f"{node.name} ({address_of(node)}) and its peers do not reach each other ({how_ended(tries)})",
                cause="a cable, a switch port or a VLAN of its own, a guest Wi-Fi, or a firewall that drops both ways",
                fix=f"on it: ip -4 -br address; ping -c 3 {_some_peer(node, fleet)}; then: "
                f"orch firewall show --nodes {node.name}",
            )


def not_reached(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Nobody reaches a node, which reaches others, and its own packet filter is known to be off."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.walled and node.network and node.network.firewall_active is False:
            tries = [tries for pair, tries in shut.tries.items() if pair[1] == node.name]
            yield Finding(
                id="network.one_way",
                severity=Severity.ERROR,
                node=node.name,
                message=f"{node.name} ({address_of(node)}) reaches its peers, but none reaches it ({how_ended(tries)})",
                cause="no firewall is on there: something between drops what comes in (NAT, a virtual machine's host)",
                fix=f"give {node.name} a bridged address on the LAN; on it: ip -4 -br address; ip route",
            )


def no_way_out(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A node reaches nobody, though the others reach it."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.mute:
            tries = [tries for pair, tries in shut.tries.items() if pair[0] == node.name]
            yield Finding(
                id="network.no_way_out",
                severity=Severity.ERROR,
                node=node.name,
                message=f"{node.name} reaches none of its peers, though they reach it ({how_ended(tries)})",
                cause="a firewall there filters what goes out, or a route leads elsewhere",
                fix=f"on it: ip route get {_some_peer(node, fleet)}; sudo iptables -S OUTPUT; sudo nft list ruleset",
            )


def pair_unreachable(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Single pairs, each told once for both directions."""
    shut = shut_of(fleet)
    addresses = {node.name: address_of(node) for node in fleet}
    for here, there in shut.pairs:
        both = (there, here) in shut.pairs
        if both and here > there:
            continue
        words = "do not reach each other" if both else "does not get through, though the other way does"
        names = f"{here} and {there}" if both else f"{here} to {there}"
        yield Finding(
            id="network.unreachable",
            severity=Severity.ERROR,
            node=f"{here}, {there}",
            message=f"{names} {words} ({how_ended([shut.tries[here, there]])})",
            cause="a firewall rule or a route for this one address; all other pairs tell nothing of the kind",
            fix=f"on {here}: ip route get {addresses[there]}; on {there}: sudo iptables -S INPUT; "
            f"then: orch firewall apply --nodes {there}",
        )


def mtu_black_hole(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Small packets pass, large ones vanish: a run connects, then hangs at its first gradients."""
    holes: dict[str, list[str]] = {}
    for (here, there), way in ways_of(fleet).items():
        if way is Way.BLACK_HOLE:
            holes.setdefault(there, []).append(here)
    for node in fleet:
        if node.name in holes:
            interface = interface_towards_peers(node) or "INTERFACE"
            yield Finding(
                id="network.mtu_black_hole",
                severity=Severity.ERROR,
                node=node.name,
                message=f"large packets from {node.name} to {', '.join(holes[node.name])} vanish; small ones arrive",
                cause="its MTU is larger than the way's (VPN, VLAN, PPPoE, jumbo frames), and nobody tells it so",
                fix=f"on {node.name}: sudo ip link set dev {interface} mtu 1400",
            )


CHECKS = (no_pair_reaches, cut_off, not_reached, no_way_out, pair_unreachable, mtu_black_hole)


def how_ended(several: Iterable[Sequence[Path]]) -> str:
    """`timed out`, or `refused 4 times, timed out 16 times`: what only some firewalls do tells them apart."""
    counted = Counter(path.ended.value for tries in several for path in tries if path.ended.value != "ok")
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{ended} {times}×" for ended, times in counted.most_common())


def _filters(node: Examined) -> bool:
    return bool(node.network and node.network.firewall_active)


def _some_peer(node: Examined, fleet: Sequence[Examined]) -> str:
    return next((address_of(other) for other in fleet if other.name != node.name), "")
