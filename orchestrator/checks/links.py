"""Checks of the links themselves: Wi-Fi, speed, duplex, MTU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from orchestrator.checks.node_network import used_interface
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined

SLOW_MBIT = 1000
"""Gradients of a small model take 1 s a step at 100 Mbit/s (docs/sync.md)."""


def wifi(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Its speed changes by the second, and every step waits for the slowest."""
    for node in fleet:
        used = used_interface(node)
        if used and used.kind == "wifi":
            yield Finding.of("network.wifi", node.name, interface=used.name)


def slow_link(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A cable or switch that brings 100 Mbit/s out of a gigabit card."""
    for node in fleet:
        used = used_interface(node)
        if used and used.kind == "ethernet" and used.speed_mbit and used.speed_mbit < SLOW_MBIT:
            yield Finding.of("network.slow_link", node.name, interface=used.name, speed_mbit=used.speed_mbit)


def half_duplex(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Both directions take turns, and collide: what two sides who disagree on duplex end with."""
    for node in fleet:
        used = used_interface(node)
        if used and used.duplex == "half":
            yield Finding.of("network.half_duplex", node.name, interface=used.name)


def mtu_differs(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """With jumbo frames on some nodes only, a switch that does not support them drops packets silently."""
    mtus = {node.name: used.mtu for node in fleet if (used := used_interface(node)) and used.mtu}
    if len(set(mtus.values())) > 1:
        usual = max(set(mtus.values()), key=lambda mtu: (list(mtus.values()).count(mtu), mtu == 1500, -mtu))
        odd = [node for node in fleet if node.name in mtus and mtus[node.name] != usual]
        lines = [f"on {node.name}: sudo ip link set dev {shlex.quote(_name(node))} mtu {usual}" for node in odd]
        yield Finding.of(
            "network.mtu_differs",
            ", ".join(node.name for node in odd),
            mtus=[f"{name} {mtu}" for name, mtu in mtus.items()],
            lines="; ".join(lines),
        )


def _name(node: Examined) -> str:
    used = used_interface(node)
    return used.name if used else ""


CHECKS = (wifi, slow_link, half_duplex, mtu_differs)
