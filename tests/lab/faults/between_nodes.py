"""Faults between machines."""

from __future__ import annotations

from collections.abc import Mapping

from tests.lab.faults import network, reach
from tests.lab.faults.lan import Fault, inventory, on

BETWEEN_NODES: Mapping[str, tuple[Fault, ...]] = {
    "firewall of one port": (
        Fault(
            what="all ports but the master's dropped",
            make=on(network.passes_the_master_port_alone, "gamma"),
            finds="firewall.passes_one_port", node="gamma", fix="orch firewall apply --nodes gamma",
        ),
        Fault(
            what="an MTU of its own",
            make=on(network.mtu, "epsilon", 1400),
            finds="network.mtu_differs", node="epsilon", fix="ip link set dev eth0 mtu 1500", says="epsilon 1400",
        ),
        Fault(
            what="two interfaces in one network",
            make=on(network.second_interface_in_the_subnet, "beta"),
            finds="network.two_in_subnet", node="beta", fix="nodes.beta.interface: eth0", says="tun9",
        ),
        Fault(
            what="an interface that is not there",
            make=on(inventory, "alpha", interface="enp9s9"),
            finds="network.interface_missing", node="alpha", fix="nodes.alpha.interface", says="enp9s9",
            follows=("network.interface_differs",),
        ),
    ),
    "single ways": (
        Fault(
            what="an MTU black hole",
            make=on(network.black_hole, "delta"),
            finds="network.mtu_black_hole", node="delta", fix="mtu 1400", says="large packets from delta",
        ),
        Fault(
            what="one pair, one direction",
            make=on(network.one_way, "alpha", "beta"),
            finds="network.unreachable", node="beta", fix="on beta: sudo iptables -S INPUT", says="alpha to beta",
        ),
        Fault(
            what="the master's port alone dropped",
            make=on(network.blocks_the_master_port_alone, "epsilon"),
            finds="firewall.blocks_master_port", node="epsilon", fix="orch firewall apply --nodes epsilon",
        ),
    ),
    "whole machines": (
        Fault(
            what="cut off from its peers, not from here",
            make=on(network.cut_off_from_peers, "epsilon"),
            finds="network.cut_off", node="epsilon", fix="orch firewall show --nodes epsilon",
        ),
        Fault(
            what="a VPN claims the LAN",
            make=on(network.route_through_the_vpn, "gamma", "delta"),
            finds="network.vpn_route", node="gamma", fix="take the LAN out of it: ip route get", says="tun9",
            follows=("network.unreachable",),
        ),
    ),
    "in and out": (
        Fault(
            what="a firewall that lets no peer in",
            make=on(network.lets_no_peer_in, "gamma"),
            finds="firewall.blocks_peers", node="gamma", fix="orch firewall apply --nodes gamma",
        ),
        Fault(
            what="a firewall that lets nothing out",
            make=on(network.reaches_no_peer, "delta"),
            finds="network.no_way_out", node="delta", fix="iptables -S OUTPUT",
        ),
    ),
    "guests": (
        Fault(
            what="no node reaches another",
            make=on(network.isolated_clients),
            finds="network.isolated", node="alpha", fix="client isolation", says="no node reaches any other",
        ),
    ),
    "addresses": (
        Fault(
            what="a port forward before a machine",
            make=on(network.behind_a_port_forward, "epsilon"),
            finds="network.address_elsewhere", node="epsilon", fix="nodes.epsilon.address",
        ),
        Fault(
            what="two machines with one address",
            make=on(network.address_taken_twice, "delta", "alpha"),
            finds="network.address_duplicate", node="alpha", fix="sudo ip address del", says="delta has it too",
            follows=("network.unreachable",),
        ),
    ),
    "a slow link": (
        Fault(
            what="a link of a few kbit/s",
            make=on(reach.very_slow_link, "epsilon"),
            finds="reach.slow", node="epsilon", fix="ping", says="ms to come back",
        ),
    ),
}  # fmt: skip
