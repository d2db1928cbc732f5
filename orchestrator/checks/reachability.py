"""Pairs of nodes that do not reach each other, folded into the largest fault that explains them; findings where no
firewall explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.checks.node_network import address_of, interface_towards_peers
from orchestrator.specs.finding import Finding
from orchestrator.specs.network import Ended, Path
from orchestrator.specs.node_report import Examined


class PairState(Enum):
    """Connections from one node to another."""

    OPEN = "open"
    BLOCKED = "blocked"
    ONLY_MASTER_PORT = "only the master port"
    """The rendezvous port passes, other ports do not."""
    MASTER_PORT_BLOCKED = "master port blocked"
    BLACK_HOLE = "black hole"


Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Unreachable:
    """Pairs of nodes without any connection, each reported once, under the widest fault that explains it."""

    everywhere: bool = False
    """No node reaches any other."""
    cut_off: tuple[str, ...] = ()
    """Nodes that neither reach another nor are reached."""
    unreached: tuple[str, ...] = ()
    """Nodes that no other reaches, though they reach others."""
    without_way_out: tuple[str, ...] = ()
    """Nodes that reach no other, though others reach them."""
    pairs: tuple[Pair, ...] = ()
    attempts: Mapping[Pair, tuple[Path, ...]] = field(default_factory=dict)


def attempts_by_pair(fleet: Sequence[Examined]) -> dict[Pair, tuple[Path, ...]]:
    """All attempts, by the node that dialled and its peer."""
    found: dict[Pair, list[Path]] = {}
    for node in fleet:
        for path in node.paths:
            found.setdefault((node.name, path.peer), []).append(path)
    return {pair: tuple(attempts) for pair, attempts in found.items()}


def pair_states(fleet: Sequence[Examined]) -> dict[Pair, PairState]:
    """Outcome of the attempts for every pair that was tried."""
    return {pair: _pair_state(attempts) for pair, attempts in attempts_by_pair(fleet).items()}


def unreachable_pairs(fleet: Sequence[Examined]) -> Unreachable:
    """Folded: the firewall of one node is one fault, not one for each of its peers."""
    attempts = attempts_by_pair(fleet)
    states = {pair: _pair_state(tried) for pair, tried in attempts.items()}
    shut = {pair for pair, state in states.items() if state is PairState.BLOCKED}
    tried = {name for pair in states for name in pair}
    names = [node.name for node in fleet if node.name in tried]
    everywhere = bool(shut) and len(shut) == len(states) and len(names) > 1
    if everywhere:
        return Unreachable(everywhere=True, attempts=attempts)
    cut = _all_shut(names, states, shut, ends=(0, 1), least=3)
    states = {pair: state for pair, state in states.items() if pair[0] not in cut and pair[1] not in cut}
    shut &= set(states)
    unreached = _all_shut(names, states, shut, ends=(1,), least=1)
    shut = {pair for pair in shut if pair[1] not in unreached}
    # A node that none reaches says nothing about the nodes that dial it.
    others = {pair: state for pair, state in states.items() if pair[1] not in unreached}
    without_way_out = _all_shut(names, others, shut, ends=(0,), least=2)
    left = tuple(pair for pair in states if pair in shut and pair[0] not in without_way_out)
    return Unreachable(cut_off=cut, unreached=unreached, without_way_out=without_way_out, pairs=left, attempts=attempts)


def _pair_state(attempts: Sequence[Path]) -> PairState:
    master = [path.ended for path in attempts if path.master]
    others = [path.ended for path in attempts if not path.master]
    every = master + others
    if Ended.CUT_SHORT in every:
        return PairState.BLACK_HOLE
    if all(ended is Ended.OK for ended in every):
        return PairState.OPEN
    if all(ended is not Ended.OK for ended in every):
        return PairState.BLOCKED
    return PairState.MASTER_PORT_BLOCKED if all(ended is Ended.OK for ended in others) else PairState.ONLY_MASTER_PORT


def _all_shut(
    names: Sequence[str], tried: Collection[Pair], shut: Collection[Pair], *, ends: Sequence[int], least: int
) -> tuple[str, ...]:
    """Names that stand at one of these ends of `least` pairs or more, all of which are shut (a part of `tried`)."""
    all_pairs = Counter(pair[end] for pair in tried for end in ends)
    shut_pairs = Counter(pair[end] for pair in shut for end in ends)
    return tuple(name for name in names if all_pairs[name] >= least and all_pairs[name] == shut_pairs[name])


def no_pair_reaches(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No node reaches any other, and no firewall of theirs is known to be on."""
    shut = unreachable_pairs(fleet)
    if shut.everywhere and not any(_filters(node) for node in fleet):
        names = [node.name for node in fleet if node.paths]
        yield Finding.of("network.isolated", ", ".join(names), how=how_ended(shut.attempts.values()))


def cut_off(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """One node reaches no other and is reached by none, while the others reach each other."""
    shut = unreachable_pairs(fleet)
    for node in fleet:
        if node.name in shut.cut_off and not _filters(node):
            attempts = [attempts for pair, attempts in shut.attempts.items() if node.name in pair]
            yield Finding.of(
                "network.cut_off",
                node.name,
                address=address_of(node),
                how=how_ended(attempts),
                peer=_some_peer(node, fleet),
            )


def not_reached(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No other node reaches this one, which reaches others, and its own packet filter is known to be off."""
    shut = unreachable_pairs(fleet)
    for node in fleet:
        if node.name in shut.unreached and node.network and node.network.firewall_active is False:
            attempts = [attempts for pair, attempts in shut.attempts.items() if pair[1] == node.name]
            yield Finding.of("network.one_way", node.name, address=address_of(node), how=how_ended(attempts))


def no_way_out(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A node reaches no other, though the others reach it."""
    shut = unreachable_pairs(fleet)
    for node in fleet:
        if node.name in shut.without_way_out:
            attempts = [attempts for pair, attempts in shut.attempts.items() if pair[0] == node.name]
            yield Finding.of("network.no_way_out", node.name, how=how_ended(attempts), peer=_some_peer(node, fleet))


def pair_unreachable(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Single pairs, each reported once for both directions."""
    shut = unreachable_pairs(fleet)
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
            how=how_ended([shut.attempts[here, there]]),
            here=here,
            address=addresses[there],
            there=there,
        )


def mtu_black_hole(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Small packets pass, large ones vanish: a run connects, then hangs at its first gradients."""
    holes: dict[str, list[str]] = {}
    for (here, there), state in pair_states(fleet).items():
        if state is PairState.BLACK_HOLE:
            holes.setdefault(there, []).append(here)
    for node in fleet:
        if node.name in holes:
            interface = interface_towards_peers(node) or "INTERFACE"
            yield Finding.of("network.mtu_black_hole", node.name, peers=holes[node.name], interface=interface)


CHECKS = (no_pair_reaches, cut_off, not_reached, no_way_out, pair_unreachable, mtu_black_hole)


def how_ended(several: Iterable[Sequence[Path]]) -> str:
    """`timed out`, or `refused 4 times, timed out 16 times`: what only some firewalls do tells them apart."""
    counted = Counter(path.ended.value for attempts in several for path in attempts if path.ended.value != "ok")
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{ended} {times}×" for ended, times in counted.most_common())


def _filters(node: Examined) -> bool:
    return bool(node.network and node.network.firewall_active)


def _some_peer(node: Examined, fleet: Sequence[Examined]) -> str:
    return next((address_of(other) for other in fleet if other.name != node.name), "")
