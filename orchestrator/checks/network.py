"""Checks of interfaces, routes and links (Wi-Fi, speed, duplex, MTU); all checks of the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from orchestrator.checks import addresses, reachability
from orchestrator.checks.node_network import (
    address_of,
    interface_named,
    lan_addresses,
    networks_of,
    peers_of,
    route_to,
    routed_interfaces,
    used_interface,
)
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined

SLOW_MBIT = 1000
"""Gradients of a small model take 1 s a step at 100 Mbit/s (docs/sync.md)."""


def interface_missing(node: Examined) -> Iterator[Finding]:
    """The inventory names an interface that cannot be used: gloo and NCCL would not start."""
    name = node.spec.interface
    if not name or not node.network or not node.network.interfaces:
        return
    found = interface_named(node, name)
    problem = "" if found and found.up and found.addresses else "has no IPv4 address" if found else "is not there"
    problem = "is down" if found and not found.up else problem
    if problem:
        usable = [item for item, _ in lan_addresses(node) if item != name]
        yield Finding.of(
            "network.interface_missing",
            node.name,
            case="another" if usable else "none",
            name=name,
            lacks=problem,
            usable=", ".join(usable) or "none with an address",
            first=next(iter(usable), ""),
        )


def interface_differs(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The ranks would announce the address of one interface, while their packets leave by another."""
    interfaces = routed_interfaces(fleet)
    for node in fleet:
        routed = interfaces[node.name]
        there = not node.network or interface_named(node, node.spec.interface or "")
        if node.spec.interface and there and routed and node.spec.interface not in routed:
            name = sorted(routed)[0]
            yield Finding.of("network.interface_differs", node.name, interface=node.spec.interface, name=name)


def two_in_subnet(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Cable and Wi-Fi in one LAN: the kernel may answer by either."""
    interfaces = routed_interfaces(fleet)
    for node in fleet:
        lan = lan_addresses(node)
        for name, network in lan:
            others = [other for other, net in lan if other != name and net.network == network.network]
            routed = sorted(interfaces[node.name] & {name, *others})
            if not others or name > min(others) or node.spec.interface in routed:
                continue
            chosen = routed[0] if routed else name
            yield Finding.of(
                "network.two_in_subnet",
                node.name,
                name=name,
                others=others,
                network=network.network,
                chosen=chosen,
                other=next(item for item in (name, *others) if item != chosen),
            )


def vpn_route(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The route to the peers leads through a VPN that the inventory does not name."""
    interfaces = routed_interfaces(fleet)
    for node in fleet:
        for name in sorted(interfaces[node.name]):
            found = interface_named(node, name)
            if found is None or found.kind != "vpn" or node.spec.interface == name:
                continue
            meant = address_of(node) in {str(network.ip) for network in networks_of(found)}
            peer = next(peer for peer in peers_of(node, fleet) if route_to(node, peer) == name)
            yield Finding.of("network.vpn_route", node.name, case="meant" if meant else "unmeant", name=name, peer=peer)


def wifi(node: Examined) -> Iterator[Finding]:
    """Its speed changes by the second, and every step waits for the slowest."""
    used = used_interface(node)
    if used and used.kind == "wifi":
        yield Finding.of("network.wifi", node.name, interface=used.name)


def slow_link(node: Examined) -> Iterator[Finding]:
    """A cable or switch that brings 100 Mbit/s out of a gigabit card."""
    used = used_interface(node)
    if used and used.kind == "ethernet" and used.speed_mbit and used.speed_mbit < SLOW_MBIT:
        yield Finding.of("network.slow_link", node.name, interface=used.name, speed_mbit=used.speed_mbit)


def half_duplex(node: Examined) -> Iterator[Finding]:
    """Both directions take turns, and collide, when the two ends disagree on duplex."""
    used = used_interface(node)
    if used and used.duplex == "half":
        yield Finding.of("network.half_duplex", node.name, interface=used.name)


def mtu_differs(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Report jumbo frames on some nodes only: a switch that does not support them drops packets silently."""
    interfaces = {node.name: used for node in fleet if (used := used_interface(node))}
    mtus = [used.mtu for used in interfaces.values() if used.mtu]
    if len(set(mtus)) > 1:
        usual = max(set(mtus), key=lambda mtu: (mtus.count(mtu), mtu == 1500, -mtu))
        odd = {name: used.name for name, used in interfaces.items() if used.mtu and used.mtu != usual}
        lines = [f"on {name}: sudo ip link set dev {shlex.quote(used)} mtu {usual}" for name, used in odd.items()]
        shown = [f"{name} {used.mtu}" for name, used in interfaces.items() if used.mtu]
        yield Finding.of("network.mtu_differs", ", ".join(odd), mtus=shown, lines="; ".join(lines))


LAUNCH_CHECKS = addresses.LAUNCH_CHECKS
NODE_CHECKS = (interface_missing, wifi, slow_link, half_duplex, *addresses.NODE_CHECKS)
CHECKS = (interface_differs, two_in_subnet, vpn_route, mtu_differs, *addresses.CHECKS, *reachability.CHECKS)
