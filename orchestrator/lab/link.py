"""The speed of a node's network link, and how the kernel is told. Pure."""

from __future__ import annotations

import re

from orchestrator.specs.errors import UsageError

INTERFACE = "eth0"
"""A container on one network has this one interface."""
UNSHAPED = "off"

_RATE = re.compile(r"^(\d+(?:\.\d+)?)([kmg])bit$")
_FACTOR = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_TIMER_S = 0.004
"""A bucket must hold what may pass between two ticks of the slowest usual kernel timer (250 Hz)."""
_SMALLEST_BUCKET = 16 * 1024
_LATENCY = "50ms"

_DROP = (
    ("PREROUTING", "--in-interface", INTERFACE, "--jump", "DROP"),
    ("POSTROUTING", "--out-interface", INTERFACE, "--jump", "DROP"),
)
"""Packets vanish without an answer, as on a pulled cable: no reset, no unreachable, and addresses stay."""


def parse_rate(text: str) -> int:
    """`1gbit`, `2.5gbit`, `100mbit`, `500kbit` in bits a second."""
    match = _RATE.match(text.strip().lower())
    rate = int(float(match.group(1)) * _FACTOR[match.group(2)]) if match else 0
    if rate <= 0:
        raise UsageError(f"'{text}' is no link speed", hint="write it like 1gbit, 100mbit or 500kbit")
    return rate


def shape_command(link: str) -> tuple[str, ...]:
    """What shapes the outgoing side: with every node shaped, both directions of every pair are."""
    if link == UNSHAPED:
        return ("tc", "qdisc", "delete", "dev", INTERFACE, "root")
    rate = parse_rate(link)
    bucket = max(_SMALLEST_BUCKET, int(rate / 8 * _TIMER_S))
    shape = ("tbf", "rate", f"{rate}bit", "burst", str(bucket), "latency", _LATENCY)
    return ("tc", "qdisc", "replace", "dev", INTERFACE, "root", *shape)


def cut_commands() -> tuple[tuple[str, ...], ...]:
    """What drops everything that comes and goes."""
    return tuple(_iptables("--append", rule) for rule in _DROP)


def heal_commands() -> tuple[tuple[str, ...], ...]:
    """What takes the rules of `cut_commands` away again."""
    return tuple(_iptables("--delete", rule) for rule in _DROP)


def is_cut_command() -> tuple[str, ...]:
    """Exits with 0 on a node that is cut off."""
    return _iptables("--check", _DROP[0])


def _iptables(action: str, rule: tuple[str, ...]) -> tuple[str, ...]:
    return ("iptables", "--wait", "--table", "mangle", action, *rule)
