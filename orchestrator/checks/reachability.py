"""What does not get from one node to another, where no firewall that is known explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.checks.node_network import address_of, interface_towards_peers
from orchestrator.checks.ways import Way, shut_of, ways_of
from orchestrator.specs.finding import Finding
from orchestrator.specs.network import Path
from orchestrator.specs.node_report import Examined


def no_pair_reaches(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No node reaches any other, and no firewall of theirs is known to be on."""
    shut = shut_of(fleet)
    if shut.everywhere and not any(_filters(node) for node in fleet):
        names = [node.name for node in fleet if node.paths]
        yield Finding.of("network.isolated", ", ".join(names), how=how_ended(shut.tries.values()))


def cut_off(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """One node reaches nobody and is reached by nobody, while the others reach each other."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.cut_off and not _filters(node):
            tries = [tries for pair, tries in shut.tries.items() if node.name in pair]
            yield Finding.of(
                "network.cut_off",
                node.name,
                address=address_of(node),
                how=how_ended(tries),
                peer=_some_peer(node, fleet),
            )


def not_reached(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Nobody reaches a node, which reaches others, and its own packet filter is known to be off."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.walled and node.network and node.network.firewall_active is False:
            tries = [tries for pair, tries in shut.tries.items() if pair[1] == node.name]
            yield Finding.of("network.one_way", node.name, address=address_of(node), how=how_ended(tries))


def no_way_out(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A node reaches nobody, though the others reach it."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.mute:
            tries = [tries for pair, tries in shut.tries.items() if pair[0] == node.name]
            yield Finding.of("network.no_way_out", node.name, how=how_ended(tries), peer=_some_peer(node, fleet))


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
        yield Finding.of(
            "network.unreachable",
            f"{here}, {there}",
            names=names,
            words=words,
            how=how_ended([shut.tries[here, there]]),
            here=here,
            address=addresses[there],
            there=there,
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
            yield Finding.of("network.mtu_black_hole", node.name, peers=holes[node.name], interface=interface)


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
