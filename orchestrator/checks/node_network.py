"""Place of a node on the network: its address, and the interface that leads to its peers."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface

from orchestrator.specs.network import Interface
from orchestrator.specs.node_report import Examined
from orchestrator.specs.numbers import whole

INSIDE = ("loopback", "bridge", "virtual")
"""Kinds of interfaces that lead to no other machine, as a rule."""


def address_of(node: Examined) -> str:
    """Address as it was resolved on the controller, otherwise as the inventory has it."""
    return node.facts.address if node.facts else node.spec.address


def one_machine(first: Examined, second: Examined) -> bool:
    """Return whether two names lead to one machine, as its engine's id tells."""
    engines = [node.facts.engine.id for node in (first, second) if node.facts and node.facts.engine]
    return len(engines) == 2 and engines[0] == engines[1]


def peers_of(node: Examined, fleet: Sequence[Examined]) -> list[str]:
    """Addresses of the others."""
    return [address_of(other) for other in fleet if other.name != node.name]


def routed_interfaces(fleet: Sequence[Examined]) -> dict[str, set[str]]:
    """Names of the interfaces by which the packets of each node to its peers leave, as the kernel says."""
    held = {address_of(node) for node in fleet}
    return {
        node.name: {route.interface for address, route in node.facts.routes.items() if address in held}
        if node.facts
        else set()
        for node in fleet
    }


def route_to(node: Examined, address: str) -> str:
    """The interface by which packets to this address leave; empty where it is not known."""
    routes = node.facts.routes if node.facts else {}
    return routes[address].interface if address in routes else ""


def interface_to(node: Examined, address: str) -> str:
    """The interface that this address is on: that of the route to it, otherwise of the network that holds it."""
    holds = (
        item.name for item in interfaces_of(node) for net in networks_of(item) if IPv4Address(address) in net.network
    )
    return route_to(node, address) or next(holds, "")


def interface_towards_peers(node: Examined) -> str:
    """The one that a run would use; empty where it is not known, or not one."""
    if node.spec.interface:
        return node.spec.interface
    used = {route.interface for route in node.facts.routes.values()} if node.facts else set()
    return next(iter(used)) if len(used) == 1 else ""


def interface_named(node: Examined, name: str) -> Interface | None:
    return next((interface for interface in interfaces_of(node) if interface.name == name), None)


def used_interface(node: Examined) -> Interface | None:
    """The interface that a run would use, as the node reports it; None where it is not known."""
    return interface_named(node, interface_towards_peers(node))


def networks_of(interface: Interface) -> list[IPv4Interface]:
    return [IPv4Interface(address) for address in interface.addresses]


def interfaces_of(node: Examined) -> tuple[Interface, ...]:
    return node.network.interfaces if node.network else ()


def lan_addresses(node: Examined) -> list[tuple[str, IPv4Interface]]:
    """Addresses by which other machines could reach it, each with its interface. A container's link is `virtual`."""
    used = {node.spec.interface, *(route.interface for route in node.facts.routes.values())} if node.facts else set()
    return [
        (item.name, network)
        for item in interfaces_of(node)
        if item.up and (item.kind not in INSIDE or item.name in used)
        for network in networks_of(item)
    ]


def is_ipv4(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(whole(part, most=255) is not None for part in parts)
