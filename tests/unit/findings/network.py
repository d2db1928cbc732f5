"""Addresses, interfaces, links, and the ways from node to node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from orchestrator.checks import network
from orchestrator.specs.facts import Route
from orchestrator.specs.finding import Finding
from orchestrator.specs.firewall import Firewall
from orchestrator.specs.network import Ended, Interface, NetworkFacts, Path
from orchestrator.specs.node_report import Examined
from tests import lan

PORT = 12355
RANDOM = (34357, 39671, 41001, 45555)
THREE = lan.NAMES[:3]
OFF = Firewall(tool="ufw", active=False)
WALL = Firewall(tool="ufw", active=True, openings=())


def cable(node: str, **changes: Any) -> Interface:
    values: dict[str, Any] = {
        "name": "eth0",
        "addresses": (f"{lan.address_of(node)}/24",),
        "mtu": 1500,
        "speed_mbit": 1000,
        "duplex": "full",
        "kind": "ethernet",
        "mac": mac_of(node),
    }
    return Interface(**{**values, **changes})


def mac_of(name: str) -> str:
    return f"02:00:00:00:00:{lan.NAMES.index(name):02x}"


def facts(name: str, *interfaces: Interface, wall: Firewall = OFF, **changes: Any) -> NetworkFacts:
    """A machine with one cable, unless it is given others, and the loopback and bridge that every engine's has."""
    loopback = Interface(name="lo", addresses=("127.0.0.1/8",), mtu=65536, kind="loopback")
    bridge = Interface(name="docker0", addresses=("172.17.0.1/16",), mtu=1500, kind="bridge")
    values: dict[str, Any] = {
        "interfaces": (loopback, bridge, *(interfaces or (cable(name),))),
        "own_name_answers": (lan.address_of(name),),
        "neighbours": {lan.address_of(peer): mac_of(peer) for peer in THREE if peer != name},
        "wall": wall,
        "mark": "orch:lab",
    }
    return NetworkFacts(**{**values, **changes})


def way(peer: str, master: Ended = Ended.OK, others: Ended = Ended.OK) -> tuple[Path, ...]:
    """One try for each port."""
    first = Path(peer=peer, port=PORT, master=True, ended=master)
    return (first, *(Path(peer=peer, port=port, master=False, ended=others) for port in RANDOM))


def node(name: str, **changes: Any) -> Examined:
    """Make a node in health: it reaches the others by all ports."""
    values: dict[str, Any] = {
        "spec": lan.spec(name),
        "facts": lan.facts(name, peers=THREE),
        "network": facts(name),
        "paths": tuple(path for peer in THREE if peer != name for path in way(peer)),
    }
    return Examined(**{**values, **changes})


def beta(**changes: Any) -> list[Examined]:
    """Three nodes, the second of which is changed."""
    return [node("alpha"), node("beta", **changes), node("gamma")]


def ways(
    shut: Collection[tuple[str, str]],
    names: Sequence[str] = THREE,
    *,
    tries: Callable[[str], tuple[Path, ...]] = lambda peer: way(peer, Ended.TIMED_OUT, Ended.TIMED_OUT),
    **changes: Any,
) -> list[Examined]:
    """Nodes of which these ordered pairs do not get through; the rest do."""
    return [
        node(
            name,
            paths=tuple(
                path for peer in names if peer != name for path in (tries(peer) if (name, peer) in shut else way(peer))
            ),
            **changes,
        )
        for name in names
    ]


def into(name: str) -> set[tuple[str, str]]:
    return {(peer, name) for peer in THREE if peer != name}


def out_of(name: str) -> set[tuple[str, str]]:
    return {(name, peer) for peer in THREE if peer != name}


def found(fleet: Sequence[Examined]) -> Iterator[Finding]:
    for node in fleet:
        for of_one in network.NODE_CHECKS:
            yield from of_one(node)
    for check in network.CHECKS:
        yield from check(fleet)


def of(fleet: Callable[[], Sequence[Examined]]) -> Callable[[], Iterable[Finding]]:
    return lambda: found(fleet())


def of_beta(**changes: Any) -> Callable[[], Iterable[Finding]]:
    return of(partial(beta, **changes))


def healthy() -> Iterable[Finding]:
    return found([node(name) for name in THREE])


def routed_by(interface: str) -> dict[str, Any]:
    routes = {lan.address_of(peer): Route(interface=interface, source="") for peer in ("alpha", "gamma")}
    return {"facts": lan.facts("beta", routes=routes)}


WIFI = Interface(name="wlan0", addresses=("10.0.0.77/24",), mtu=1500, kind="wifi", mac="02:00:00:00:01:01")
TUNNEL = Interface(name="wg0", addresses=("10.9.0.2/24",), mtu=1420, kind="vpn")
CUT_SHORT = partial(ways, {("alpha", "beta")}, tries=lambda peer: way(peer, Ended.CUT_SHORT, Ended.CUT_SHORT))
EVERY = into("alpha") | into("beta") | into("gamma")

MAKERS: dict[str, Callable[[], Iterable[Finding]]] = {
    "network.interface_missing": of_beta(spec=lan.spec("beta", interface="enp9s0")),
    "network.interface_differs": of_beta(
        spec=lan.spec("beta", interface="wg0"), network=facts("beta", cable("beta"), TUNNEL)
    ),
    "network.two_in_subnet": of_beta(network=facts("beta", cable("beta"), WIFI)),
    "network.vpn_route": of_beta(network=facts("beta", cable("beta"), TUNNEL), **routed_by("wg0")),
    "network.address_elsewhere": of_beta(network=facts("beta", cable("beta", addresses=("192.168.7.2/24",)))),
    "network.address_duplicate": of_beta(
        network=facts("beta", cable("beta", addresses=("10.0.0.12/24", "10.0.0.13/24")))
    ),
    "network.own_name_loops": of_beta(network=facts("beta", own_name_answers=("127.0.1.1",))),
    "network.own_name_astray": of_beta(network=facts("beta", own_name_answers=("10.0.0.99",))),
    "network.subnets_differ": of_beta(network=facts("beta", cable("beta", addresses=("10.0.0.12/28",)))),
    "network.wifi": of_beta(network=facts("beta", cable("beta", kind="wifi", speed_mbit=None, duplex=""))),
    "network.slow_link": of_beta(network=facts("beta", cable("beta", speed_mbit=100))),
    "network.half_duplex": of_beta(network=facts("beta", cable("beta", duplex="half"))),
    "network.mtu_differs": of_beta(network=facts("beta", cable("beta", mtu=9000))),
    "network.isolated": of(partial(ways, EVERY)),
    "network.cut_off": of(partial(ways, into("beta") | out_of("beta"))),
    "network.one_way": of(partial(ways, into("beta"))),
    "network.no_way_out": of(partial(ways, out_of("beta"))),
    "network.unreachable": of(partial(ways, {("alpha", "beta")})),
    "network.mtu_black_hole": of(CUT_SHORT),
}
