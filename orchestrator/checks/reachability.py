"""Pairs of nodes that do not reach each other, folded into the largest fault that explains them; findings where no
firewall explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.checks.node_network import address_of, interface_towards_peers
from orchestrator.specs.finding import Finding
from orchestrator.specs.network import Ended, Path
from orchestrator.specs.node_report import Examined


class Way(Enum):
    """From one node to another."""

    OPEN = "open"
    SHUT = "shut"
    RANDOM_SHUT = "random shut"
    """The rendezvous port passes, other ports do not."""
    MASTER_SHUT = "master shut"
    BLACK_HOLE = "black hole"


Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Shut:
    """Pairs of nodes without any connection, each reported once, under the widest fault that explains it."""

    everywhere: bool = False
    """No node reaches any other."""
    cut_off: tuple[str, ...] = ()
    """Nodes that neither reach another nor are reached."""
    walled: tuple[str, ...] = ()
    """Nodes that no other reaches, though they reach others."""
    mute: tuple[str, ...] = ()
    """Nodes that reach no other, though others reach them."""
    pairs: tuple[Pair, ...] = ()
    tries: Mapping[Pair, tuple[Path, ...]] = field(default_factory=dict)


def tries_of(fleet: Sequence[Examined]) -> dict[Pair, tuple[Path, ...]]:
    """All tries, by the node that dialled and its peer."""
    peers = {(node.name, path.peer): None for node in fleet for path in node.paths}
    return {
        (name, peer): tuple(path for node in fleet if node.name == name for path in node.paths if path.peer == peer)
        for name, peer in peers
    }


def ways_of(fleet: Sequence[Examined]) -> dict[Pair, Way]:
    """Outcome of the tries for every pair that was tried."""
    return {pair: _way(tries) for pair, tries in tries_of(fleet).items()}


def shut_of(fleet: Sequence[Examined]) -> Shut:
    """Folded: the firewall of one node is one fault, not one for each of its peers."""
    tries, ways = tries_of(fleet), ways_of(fleet)
    shut = {pair for pair, way in ways.items() if way is Way.SHUT}
    names = [node.name for node in fleet if any(node.name in pair for pair in ways)]
    everywhere = bool(shut) and len(shut) == len(ways) and len(names) > 1
    if everywhere:
        return Shut(everywhere=True, tries=tries)
    cut = tuple(name for name in names if len(_with(name, ways)) > 2 and _with(name, ways) <= shut)
    ways = {pair: way for pair, way in ways.items() if not set(pair) & set(cut)}
    shut &= set(ways)
    walled = tuple(name for name in names if _into(name, ways) and _into(name, ways) <= shut)
    shut = {pair for pair in shut if pair[1] not in walled}
    others = {
        pair: way for pair, way in ways.items() if pair[1] not in walled
    }  # who is walled tells nothing of who dials
    mute = tuple(name for name in names if len(_from(name, others)) > 1 and _from(name, others) <= shut)
    left = tuple(pair for pair in ways if pair in shut and pair[0] not in mute)
    return Shut(cut_off=cut, walled=walled, mute=mute, pairs=left, tries=tries)


def _way(tries: Sequence[Path]) -> Way:
    master = [path.ended for path in tries if path.master]
    others = [path.ended for path in tries if not path.master]
    every = master + others
    if Ended.CUT_SHORT in every:
        return Way.BLACK_HOLE
    if all(ended is Ended.OK for ended in every):
        return Way.OPEN
    if all(ended is not Ended.OK for ended in every):
        return Way.SHUT
    return Way.MASTER_SHUT if all(ended is Ended.OK for ended in others) else Way.RANDOM_SHUT


def _into(name: str, ways: Mapping[Pair, Way]) -> set[Pair]:
    return {pair for pair in ways if pair[1] == name}


def _from(name: str, ways: Mapping[Pair, Way]) -> set[Pair]:
    return {pair for pair in ways if pair[0] == name}


def _with(name: str, ways: Mapping[Pair, Way]) -> set[Pair]:
    return _into(name, ways) | _from(name, ways)


def no_pair_reaches(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No node reaches any other, and no firewall of theirs is known to be on."""
    shut = shut_of(fleet)
    if shut.everywhere and not any(_filters(node) for node in fleet):
        names = [node.name for node in fleet if node.paths]
        yield Finding.of("network.isolated", ", ".join(names), how=how_ended(shut.tries.values()))


def cut_off(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """One node reaches no other and is reached by none, while the others reach each other."""
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
    """No other node reaches this one, which reaches others, and its own packet filter is known to be off."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.walled and node.network and node.network.firewall_active is False:
            tries = [tries for pair, tries in shut.tries.items() if pair[1] == node.name]
            yield Finding.of("network.one_way", node.name, address=address_of(node), how=how_ended(tries))


def no_way_out(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A node reaches no other, though the others reach it."""
    shut = shut_of(fleet)
    for node in fleet:
        if node.name in shut.mute:
            tries = [tries for pair, tries in shut.tries.items() if pair[0] == node.name]
            yield Finding.of("network.no_way_out", node.name, how=how_ended(tries), peer=_some_peer(node, fleet))


def pair_unreachable(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Single pairs, each reported once for both directions."""
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
