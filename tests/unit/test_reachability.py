"""Findings about what does not get through: one, for the largest thing that explains it, with a fix to paste."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from orchestrator.checks import addresses, firewall, network
from orchestrator.specs.finding import Finding, Fix
from orchestrator.specs.firewall import Firewall, Opening
from orchestrator.specs.network import Ended
from orchestrator.specs.node_report import Examined
from tests import lan
from tests.unit.findings.firewall import untried, walled
from tests.unit.findings.network import (
    EVERY,
    OFF,
    TUNNEL,
    WALL,
    WIFI,
    beta,
    cable,
    facts,
    into,
    mac_of,
    node,
    out_of,
    routed_by,
    way,
    ways,
)

UNKNOWN = Firewall(tool="ufw", active=None)


def found(fleet: Sequence[Examined]) -> list[Finding]:
    of_one = [finding for check in network.NODE_CHECKS for node in fleet for finding in check(node)]
    return [*of_one, *(finding for check in (*network.CHECKS, *firewall.CHECKS) for finding in check(fleet))]


def reported(fleet: Sequence[Examined]) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.severity.value, finding.node) for finding in found(fleet)]


@pytest.mark.parametrize(
    ("shut", "wall", "id", "who"),
    [
        (EVERY, OFF, "network.isolated", "alpha, beta, gamma"),
        (EVERY, WALL, "firewall.blocks_peers", "beta"),
        (into("beta") | out_of("beta"), OFF, "network.cut_off", "beta"),
        (into("beta") | out_of("beta"), UNKNOWN, "network.cut_off", "beta"),
        (into("beta") | out_of("beta"), WALL, "firewall.blocks_peers", "beta"),
        (into("beta"), OFF, "network.one_way", "beta"),
        (into("beta"), WALL, "firewall.blocks_peers", "beta"),
        (into("beta"), UNKNOWN, "firewall.blocks_peers", "beta"),
        (out_of("beta"), OFF, "network.no_way_out", "beta"),
        ({("alpha", "beta")}, OFF, "network.unreachable", "alpha, beta"),
        ({("alpha", "beta"), ("beta", "alpha")}, WALL, "network.unreachable", "alpha, beta"),
    ],
)
def test_one_fault_is_one_finding(shut: Collection[tuple[str, str]], wall: Firewall, id: str, who: str) -> None:
    assert reported(walled(ways(shut), wall)) == [(id, "error", who)]


def test_a_node_that_lets_none_in_does_not_hide_one_that_gets_nowhere() -> None:
    others = ("alpha", "gamma", "epsilon")
    shut = {(name, "beta") for name in (*others, "delta")} | {("delta", name) for name in others}
    assert reported(walled(ways(shut, lan.NAMES), UNKNOWN)) == [
        ("network.no_way_out", "error", "delta"),
        ("firewall.blocks_peers", "error", "beta"),
    ]


def test_two_nodes_and_one_firewall() -> None:
    two = ways({("alpha", "beta")}, ("alpha", "beta"))
    assert reported(walled(two, WALL)) == [("firewall.blocks_peers", "error", "beta")]


def test_the_fix_opens_what_is_needed_and_no_more() -> None:
    (finding,) = found(walled(ways(into("beta")), WALL))
    assert finding.fix == (
        "orch firewall apply --nodes beta; or on it: for peer in 10.0.0.11 10.0.0.13; "
        "do sudo ufw prepend allow proto tcp from $peer to any comment orch:lab; done"
    )
    assert finding.auto_fix == Fix(
        what="let the inventory's machines in through ufw on beta",
        orch=("firewall", "apply", "--nodes", "beta", "--yes"),
    )
    assert "from alpha, gamma: timed out on 12355, 34357, 39671, …" in finding.message


def test_large_packets_are_lost_by_who_sends_them() -> None:
    hole = ways({("alpha", "beta")}, tries=lambda peer: way(peer, Ended.CUT_SHORT, Ended.CUT_SHORT))
    (finding,) = found(hole)
    assert (finding.id, finding.node) == ("network.mtu_black_hole", "beta")
    assert finding.message == "large packets from beta to alpha vanish; small ones arrive"
    assert finding.fix == "on beta: sudo ip link set dev eth0 mtu 1400"


def test_a_try_that_was_not_made_is_no_fault() -> None:
    unasked = beta(paths=(), network=None, facts=None)
    assert not reported([replace(one, paths=tuple(way for way in one.paths if way.peer != "beta")) for one in unasked])


def test_a_rendezvous_port_that_was_not_tried() -> None:
    """A taken port is not tried: the others show as much of a firewall."""
    shut = ways(into("beta"), tries=lambda peer: way(peer, Ended.TIMED_OUT, Ended.TIMED_OUT)[1:])
    assert reported(walled(shut, WALL)) == [("firewall.blocks_peers", "error", "beta")]


def test_what_the_inventory_chose_is_not_doubted() -> None:
    chosen = lan.spec("beta", interface="eth0")
    assert reported(beta(spec=chosen, network=facts("beta", cable("beta"), WIFI))) == []
    tunnel = lan.spec("beta", interface="wg0")
    through = facts("beta", cable("beta"), replace(TUNNEL, mtu=1500))
    assert reported(beta(spec=tunnel, network=through, **routed_by("wg0"))) == []


def test_an_interface_that_is_down_or_has_no_address() -> None:
    for changes, missing in (({"up": False}, "which is down"), ({"addresses": ()}, "which has no IPv4 address")):
        own = facts("beta", cable("beta"), cable("beta", name="eth1", **changes))
        (finding,) = found(beta(spec=lan.spec("beta", interface="eth1"), network=own, **routed_by("eth1")))
        assert missing in finding.message
        assert finding.fix.startswith("in the inventory: nodes.beta.interface: eth0")


def test_a_stranger_that_answers_for_an_address() -> None:
    fleet = [node("alpha", network=facts("alpha", neighbours={"10.0.0.12": "aa:aa:aa:aa:aa:aa"})), node("beta")]
    (finding,) = found([replace(one, paths=()) for one in fleet])
    assert (finding.id, finding.severity.value) == ("network.address_duplicate", "warning")
    assert "alpha gets answers of aa:aa:aa:aa:aa:aa" in finding.message


def test_a_repeater_that_answers_for_several_is_none() -> None:
    repeater = {"10.0.0.12": "aa:aa:aa:aa:aa:aa", "10.0.0.13": "aa:aa:aa:aa:aa:aa"}
    assert reported([node("alpha", network=facts("alpha", neighbours=repeater)), node("beta"), node("gamma")]) == []


def test_one_machine_under_two_names_is_reported_elsewhere() -> None:
    both = cable("beta", addresses=("10.0.0.12/24", "10.0.0.13/24"))
    engine = lan.facts("beta", peers=()).engine
    same = [
        node("beta", network=facts("beta", both), paths=()),
        node("gamma", network=facts("gamma", replace(both, mac=mac_of("gamma"))), paths=()),
    ]
    twins = [replace(one, facts=lan.facts(one.name, peers=(), engine=engine)) for one in same]
    assert reported(twins) == []


@pytest.mark.parametrize("answer", ["127.0.1.1", "127.0.0.1"])
def test_the_hosts_file_is_repaired_without_hurting_localhost(answer: str) -> None:
    (finding,) = found(beta(network=facts("beta", own_name_answers=(answer,))))
    assert (finding.id, finding.severity.value) == ("network.own_name_loops", "info")
    assert "echo '10.0.0.12 beta' | sudo tee -a /etc/hosts" in finding.fix
    assert ("/d' /etc/hosts" in finding.fix) is (answer == "127.0.1.1")


def test_a_lone_node_and_one_reached_by_loopback_hear_nothing_of_their_own_name() -> None:
    """No other node is to reach them by it, and the fix would lead the name to where it leads already."""
    loops = {"network": facts("beta", own_name_answers=("127.0.1.1",)), "paths": ()}
    lone = node("beta", **loops)
    local = replace(lone, facts=lan.facts("beta", peers=(), address="127.0.0.1"))
    assert [one.id for fleet in ([lone], [local], [local, node("alpha")]) for one in addresses.own_name(fleet)] == []
    assert [one.id for one in addresses.own_name([lone, node("alpha")])] == ["network.own_name_loops"]


def test_whom_a_firewall_lets_in() -> None:
    peer = Opening(source="10.0.0.11")
    assert peer.admits("10.0.0.11")
    assert not peer.admits("10.0.0.12")
    assert Opening(source="10.0.0.0/24").admits("10.0.0.12")
    assert Opening().admits("10.0.0.12")
    assert not Opening(ports="22").admits("10.0.0.12")


def test_peers_that_a_whole_interface_lets_in_need_no_rule() -> None:
    """No node could test it: `ufw allow in on eth0` on the interface of the route."""
    for interface, ids in (("eth0", []), ("eth9", ["firewall.no_rule"])):
        wall = Firewall(tool="ufw", active=True, openings=(Opening(interface=interface),))
        fleet = walled(untried(), wall)
        assert [found.id for found in firewall.no_rule(fleet)] == ids


def test_rules_of_nftables_and_iptables_prove_nothing_to_doctor() -> None:
    """Their order, sets and chains decide whom they let in: a connection shows it."""
    for tool in ("nftables", "iptables"):
        wall = Firewall(tool=tool, active=True, openings=(Opening(source="10.0.0.200", mark="orch:other"),))
        fleets = (walled(untried(), wall), beta(network=facts("beta", wall=wall)))
        assert [one.id for fleet in fleets for check in firewall.CHECKS for one in check(fleet)] == []


@pytest.mark.parametrize(
    ("opening", "ids"),
    [
        (Opening(), ["firewall.open_to_more"]),
        (Opening(source="10.0.0.0/8"), ["firewall.open_to_more"]),
        (Opening(source="10.0.0.200"), ["firewall.open_to_more"]),
        (Opening(source="10.0.0.11"), []),
        (Opening(ports="12355"), ["firewall.open_to_more"]),
        (Opening(source="10.0.0.14", mark="orch:lab"), []),
        (Opening(ports="22"), []),
        (Opening(ports="80,443"), []),
        (Opening(ports="OpenSSH"), []),
    ],
)
def test_who_else_gets_in(opening: Opening, ids: list[str]) -> None:
    fleet = beta(network=facts("beta", wall=replace(WALL, openings=(opening,))))
    assert [finding.id for finding in found(fleet)] == ids
