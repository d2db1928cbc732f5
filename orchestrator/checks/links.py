"""What the links themselves are like: Wi-Fi, speed, duplex, MTU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.checks.node_network import used_interface
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.node_report import Examined

SLOW_MBIT = 1000
"""Gradients of a small model take 1 s a step at 100 Mbit/s (docs/sync.md)."""


def wifi(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Its speed changes by the second, and every step waits for the slowest."""
    for node in fleet:
        used = used_interface(node)
        if used and used.kind == "wifi":
            yield Finding(
                id="network.wifi",
                severity=Severity.WARNING,
                node=node.name,
                message=f"{node.name} reaches its peers over Wi-Fi ({used.name})",
                cause="all nodes on a Wi-Fi share one channel, and every step waits for the slowest link",
                fix="a network cable; else a way of synchronising for slow links: orch launch -- gpt2 --sync auto",
            )


def slow_link(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A cable or switch that brings 100 Mbit/s out of a gigabit card."""
    for node in fleet:
        used = used_interface(node)
        if used and used.kind == "ethernet" and used.speed_mbit and used.speed_mbit < SLOW_MBIT:
            yield Finding(
                id="network.slow_link",
                severity=Severity.WARNING,
                node=node.name,
                message=f"the link of {node.name} ({used.name}) runs at {used.speed_mbit} Mbit/s",
                cause="a cable with two broken or missing pairs, an old switch, or a speed that was set by hand",
                fix=f"another cable or switch port; then on it: sudo ethtool -s {used.name} autoneg on",
            )


def half_duplex(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Both directions take turns, and collide: what two sides who disagree on duplex end with."""
    for node in fleet:
        used = used_interface(node)
        if used and used.duplex == "half":
            yield Finding(
                id="network.half_duplex",
                severity=Severity.WARNING,
                node=node.name,
                message=f"the link of {node.name} ({used.name}) is half duplex: it sends or receives, never both",
                cause="one side of the cable was set by hand and the other negotiates, or there is a hub between",
                fix=f"on it: sudo ethtool -s {used.name} autoneg on; and the same on the switch",
            )


def mtu_differs(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Jumbo frames on some nodes alone are lost without a word at a switch that does not pass them."""
    mtus = {node.name: used.mtu for node in fleet if (used := used_interface(node)) and used.mtu}
    if len(set(mtus.values())) > 1:
        usual = max(set(mtus.values()), key=lambda mtu: (list(mtus.values()).count(mtu), mtu == 1500, -mtu))
        odd = [node for node in fleet if node.name in mtus and mtus[node.name] != usual]
        lines = [f"on {node.name}: sudo ip link set dev {_name(node)} mtu {usual}" for node in odd]
        yield Finding(
            id="network.mtu_differs",
            severity=Severity.WARNING,
            node=", ".join(node.name for node in odd),
            message=f"the nodes' MTUs differ: {', '.join(f'{name} {mtu}' for name, mtu in mtus.items())}",
            cause="within one network segment nothing tells a sender that its packets are too large for the receiver",
            fix="; ".join(lines),
        )


def _name(node: Examined) -> str:
    used = used_interface(node)
    return used.name if used else ""


CHECKS = (wifi, slow_link, half_duplex, mtu_differs)
