"""Findings about what firewalls keep out, and which addresses they let in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.checks import firewall
from orchestrator.specs.finding import Finding
from orchestrator.specs.firewall import Firewall, Opening
from orchestrator.specs.network import Ended
from orchestrator.specs.node_report import Examined
from tests import lan
from tests.unit.findings.network import OFF, THREE, WALL, beta, cable, facts, into, node, way, ways

TIGHT = replace(WALL, openings=tuple(Opening(source=lan.address_of(name), mark="orch:lab") for name in THREE))
MASTER_PASSES = partial(ways, into("beta"), tries=lambda peer: way(peer, Ended.OK, Ended.TIMED_OUT))
MASTER_FAILS = partial(ways, into("beta"), tries=lambda peer: way(peer, Ended.REFUSED, Ended.OK))


def found(fleet: Sequence[Examined]) -> Iterator[Finding]:
    for check in firewall.CHECKS:
        yield from check(fleet)


def walled(fleet: Sequence[Examined], wall: Firewall, name: str = "beta") -> list[Examined]:
    """The same, with this filter on one node."""
    return [replace(one, network=facts(name, wall=wall)) if one.name == name else one for one in fleet]


def of(fleet: Callable[[], Sequence[Examined]], wall: Firewall) -> Callable[[], Iterable[Finding]]:
    return lambda: found(walled(fleet(), wall))


def untried(**changes: Any) -> list[Examined]:
    return [replace(one, paths=()) for one in beta(**changes)]


def healthy() -> Iterable[Finding]:
    """Check nodes with the firewall on, and rules for the inventory's machines alone; or off, at home."""
    yield from found([node(name, network=facts(name, wall=TIGHT)) for name in THREE])
    yield from found([node(name) for name in THREE])


def public() -> Iterable[Finding]:
    both = cable("beta", addresses=("10.0.0.12/24", "8.8.4.4/24"))
    return found(beta(network=facts("beta", both, wall=OFF)))


MAKERS: dict[str, Callable[[], Iterable[Finding]]] = {
    "firewall.blocks_peers": of(partial(ways, into("beta")), WALL),
    "firewall.passes_one_port": of(MASTER_PASSES, WALL),
    "firewall.blocks_master_port": of(MASTER_FAILS, WALL),
    "firewall.no_rule": of(untried, WALL),
    "firewall.open_to_the_world": public,
    "firewall.open_to_more": of(beta, replace(TIGHT, openings=(*(TIGHT.openings or ()), Opening(ports="12000:13000")))),
}
