"""Checks of addresses: the inventory's, the machine's own, and the names that resolve to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address

from orchestrator.checks.node_network import address_of, interfaces_of, is_ipv4, lan_addresses, networks_of, one_machine
from orchestrator.specs.facts import NodeFacts
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
    holders_of, answers_for, addresses_of = _held(fleet), _answers(fleet), _answered(fleet)
    for node in fleet:
        address = address_of(node)
        holders = [other.name for other in holders_of.get(address, ()) if _is_another(other, node)]
        strangers = {
            other.name: mac
            for other, mac in answers_for.get(address, ())
            if _is_another(other, node) and _is_foreign(mac, node) and len(addresses_of[mac]) == 1
        }
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


def loopback_address(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """An address that leads each of the others to itself."""
    loopback = [facts for facts in fleet if facts.address.startswith("127.")]
    if len(loopback) < len(fleet):
        for facts in loopback:
            yield Finding.of("network.loopback", facts.name, address=facts.address)


LAUNCH_CHECKS = (loopback_address,)
NODE_CHECKS = (address_elsewhere,)
CHECKS = (address_duplicate, own_name, subnets_differ)


def _is_another(node: Examined, than: Examined) -> bool:
    """Return whether the two are different machines. One machine under two names (same engine id) is reported
    elsewhere."""
    return node.name != than.name and not one_machine(node, than)


def _held(fleet: Sequence[Examined]) -> dict[str, list[Examined]]:
    """Nodes by the addresses of their interfaces."""
    held: dict[str, list[Examined]] = {}
    for node in fleet:
        reachable = [item for item in interfaces_of(node) if item.kind != "loopback"]
        for address in {str(network.ip) for item in reachable for network in networks_of(item)}:
            held.setdefault(address, []).append(node)
    return held


def _answers(fleet: Sequence[Examined]) -> dict[str, list[tuple[Examined, str]]]:
    """Nodes that see a neighbour at an address, each with the hardware address that answers, by address."""
    answers: dict[str, list[tuple[Examined, str]]] = {}
    for node in fleet:
        for address, mac in (node.network.neighbours if node.network else {}).items():
            answers.setdefault(address, []).append((node, mac))
    return answers


def _answered(fleet: Sequence[Examined]) -> dict[str, set[str]]:
    """Addresses by the hardware address that answers for them. One that answers for several is a repeater or a router,
    not a second machine."""
    seen: dict[str, set[str]] = {}
    for node in fleet:
        for address, mac in (node.network.neighbours if node.network else {}).items():
            seen.setdefault(mac, set()).add(address)
    return seen


def _is_foreign(mac: str, node: Examined) -> bool:
    """Return whether a hardware address is none of the node's, as far as these are known."""
    own = {item.mac for item in interfaces_of(node) if item.mac}
    return bool(own and mac) and mac not in own
