"""How each node reaches each other: single tries into one word per ordered pair, and pairs into what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

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
    """What does not get through at all, each pair told once, by the largest thing that explains it."""

    everywhere: bool = False
    """No node reaches any other."""
    cut_off: tuple[str, ...] = ()
    """They neither reach anybody nor are reached."""
    walled: tuple[str, ...] = ()
    """Nobody reaches them, though they reach others."""
    mute: tuple[str, ...] = ()
    """They reach nobody, though others reach them."""
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
    """Of every pair that was tried."""
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
