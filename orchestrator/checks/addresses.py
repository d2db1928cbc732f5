"""Checks of addresses: the inventory's, the machine's own, and the names that resolve to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address

from orchestrator.checks.node_network import address_of, interfaces_of, is_ipv4, lan_addresses, networks_of, one_machine
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined


def address_elsewhere(node: Examined) -> Iterator[Finding]:
    """The inventory's address is on no interface: NAT, a port forward, or an address that has moved."""
    held = [network for interface in interfaces_of(node) for network in networks_of(interface)]
    address = IPv4Address(address_of(node)) if held and is_ipv4(address_of(node)) else None
    if address and not address.is_loopback and address not in {network.ip for network in held}:
        usable = [f"{name} {ip.ip}" for name, ip in lan_addresses(node)]
        yield Finding.of(
            "network.address_elsewhere", node.name, address=address, usable=", ".join(usable) or "it has none"
        )


def address_duplicate(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Two machines with one address: packets reach now the one, now the other."""
    for node in fleet:
        address = address_of(node)
        holders = [other.name for other in fleet if _is_another(other, node) and _holds(other, address)]
        strangers = _strangers(node, fleet)
        if holders:
            how = f"{', '.join(holders)} has it too"
        elif strangers:
            how = (
                f"{', '.join(f'{name} gets answers of {mac}' for name, mac in strangers.items())}, which is not its own"
            )
        else:
            continue
        yield Finding.of(
            "network.address_duplicate",
            node.name,
            case="inventory" if holders else "stranger",
            address=address,
            how=how,
            holder=next(iter(holders), ""),
        )


def own_name(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The hosts file, or a name server, sends a machine's own name elsewhere than to its address on the LAN."""
    for node in fleet:
        answers = [item for item in node.network.own_name_answers if is_ipv4(item)] if node.network else []
        held = {network.ip for item in interfaces_of(node) for network in networks_of(item)}
        hostname = (node.facts.hostname if node.facts else "") or node.name
        if not answers or not held:
            continue
        if IPv4Address(answers[0]).is_loopback:
            if len(fleet) == 1 or address_of(node).startswith("127."):
                continue  # no other machine has to reach it, or its own address is that one
            yield _own_name_loops(node, hostname, answers[0])
        elif astray := [answer for answer in answers if IPv4Address(answer) not in held]:
            yield Finding.of(
                "network.own_name_astray", node.name, hostname=hostname, astray=astray, address=address_of(node)
            )


def _own_name_loops(node: Examined, hostname: str, answer: str) -> Finding:
    """Debian and Ubuntu write such a line when they are installed, and orch goes around it: worth knowing, no more."""
    pattern = f"/^{answer}[[:space:]]/d"
    if answer == "127.0.0.1":  # which is localhost's line too
        pattern = f"/^127.0.0.1[[:space:]]/s/[[:space:]]{hostname}//"
    entry = f"{address_of(node)} {hostname}"
    return Finding.of(
        "network.own_name_loops", node.name, hostname=hostname, answer=answer, pattern=pattern, entry=entry
    )


def subnets_differ(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Nodes in different networks talk through a router, if at all."""
    networks: dict[str, list[str]] = {}
    for node in fleet:
        for _, network in lan_addresses(node):
            if str(network.ip) == address_of(node):
                networks.setdefault(str(network.network), []).append(node.name)
    if len(networks) > 1:
        table = "; ".join(f"{', '.join(names)} in {network}" for network, names in networks.items())
        few = min(networks.values(), key=len)
        yield Finding.of("network.subnets_differ", ", ".join(few), table=table)


NODE_CHECKS = (address_elsewhere,)
CHECKS = (address_duplicate, own_name, subnets_differ)


def _is_another(node: Examined, than: Examined) -> bool:
    """Whether the two are different machines. One machine under two names (same engine id) is reported elsewhere."""
    return node.name != than.name and not one_machine(node, than)


def _holds(node: Examined, address: str) -> bool:
    held = {str(network.ip) for item in interfaces_of(node) if item.kind != "loopback" for network in networks_of(item)}
    return address in held


def _strangers(node: Examined, fleet: Sequence[Examined]) -> dict[str, str]:
    """Foreign hardware addresses that answer for this node's address, by the name of the peer that sees them.

    One that answers for several of the fleet's addresses is a repeater or a router, not a second machine.
    """
    own = {item.mac for item in interfaces_of(node) if item.mac}
    seen: dict[str, set[str]] = {}
    for other in fleet:
        for address, mac in (other.network.neighbours if other.network else {}).items():
            seen.setdefault(mac, set()).add(address)
    answers = {
        other.name: other.network.neighbours.get(address_of(node), "")
        for other in fleet
        if other.network and _is_another(other, node)
    }
    return {name: mac for name, mac in answers.items() if own and mac and mac not in own and len(seen[mac]) == 1}
