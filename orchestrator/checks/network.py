"""Checks of interfaces and routes and, from the modules beside it, of addresses, links and reachability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.checks import addresses, links, reachability
from orchestrator.checks.node_network import (
    address_of,
    interface_named,
    lan_addresses,
    networks_of,
    peers_of,
    route_to,
    routed_interfaces,
)
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined


def interface_missing(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The inventory names an interface that cannot be used: gloo and NCCL would not start."""
    for node in fleet:
        name = node.spec.interface
        if not name or not node.network or not node.network.interfaces:
            continue
        found = interface_named(node, name)
        lacks = "" if found and found.up and found.addresses else "has no IPv4 address" if found else "is not there"
        lacks = "is down" if found and not found.up else lacks
        if lacks:
            usable = [item for item, _ in lan_addresses(node) if item != name]
            yield Finding.of(
                "network.interface_missing",
                node.name,
                case="another" if usable else "none",
                name=name,
                lacks=lacks,
                usable=", ".join(usable) or "none with an address",
                first=next(iter(usable), ""),
            )


def interface_differs(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The ranks would announce the address of one interface, while their packets leave by another."""
    for node in fleet:
        routed = routed_interfaces(node, fleet)
        there = not node.network or interface_named(node, node.spec.interface or "")
        if node.spec.interface and there and routed and node.spec.interface not in routed:
            name = sorted(routed)[0]
            yield Finding.of("network.interface_differs", node.name, interface=node.spec.interface, name=name)


def two_in_subnet(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Cable and Wi-Fi in one LAN: which one answers is the kernel's whim."""
    for node in fleet:
        lan = lan_addresses(node)
        for name, network in lan:
            others = [other for other, net in lan if other != name and net.network == network.network]
            routed = sorted(routed_interfaces(node, fleet) & {name, *others})
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
    """The way to the peers leads through a VPN. Where it was meant, nothing is said."""
    for node in fleet:
        for name in sorted(routed_interfaces(node, fleet)):
            found = interface_named(node, name)
            if found is None or found.kind != "vpn" or node.spec.interface == name:
                continue
            meant = address_of(node) in {str(network.ip) for network in networks_of(found)}
            peer = next(peer for peer in peers_of(node, fleet) if route_to(node, peer) == name)
            yield Finding.of("network.vpn_route", node.name, case="meant" if meant else "unmeant", name=name, peer=peer)


CHECKS = (
    interface_missing,
    interface_differs,
    two_in_subnet,
    vpn_route,
    *addresses.CHECKS,
    *links.CHECKS,
    *reachability.CHECKS,
)
