"""Network of a lab: link speeds, cut cables, and a free IPv4 range. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

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
        raise UsageError(f"'{text}' is not a link speed", hint="write it like 1gbit, 100mbit or 500kbit")
    return rate


def shape_command(link: str) -> tuple[str, ...]:
    """Command that limits outgoing traffic: with all nodes limited, both directions of every pair are."""
    if link == UNSHAPED:
        return ("tc", "qdisc", "delete", "dev", INTERFACE, "root")
    rate = parse_rate(link)
    bucket = max(_SMALLEST_BUCKET, int(rate / 8 * _TIMER_S))
    shape = ("tbf", "rate", f"{rate}bit", "burst", str(bucket), "latency", _LATENCY)
    return ("tc", "qdisc", "replace", "dev", INTERFACE, "root", *shape)


def cut_commands() -> tuple[tuple[str, ...], ...]:
    """Commands that drop all incoming and outgoing packets."""
    return tuple(_iptables("--append", rule) for rule in _DROP)


def heal_commands() -> tuple[tuple[str, ...], ...]:
    """Commands that remove the rules of `cut_commands`."""
    return tuple(_iptables("--delete", rule) for rule in _DROP)


def is_cut_command() -> tuple[str, ...]:
    """Exits with 0 on a node that is cut off."""
    return _iptables("--check", _DROP[0])


def _iptables(action: str, rule: tuple[str, ...]) -> tuple[str, ...]:
    return ("iptables", "--wait", "--table", "mangle", action, *rule)


CANDIDATES = IPv4Network("10.87.0.0/16")
FIRST_HOST = 11
"""alpha is .11: the engine keeps .1 for the bridge, and people count from one."""


def free_subnets(used: Iterable[IPv4Network]) -> Iterator[IPv4Network]:
    """The /24 ranges that overlap with nothing, in order. More than one: another program may be quicker."""
    taken = [network for network in used if network.prefixlen > 0]
    for candidate in CANDIDATES.subnets(new_prefix=24):
        if not any(candidate.overlaps(network) for network in taken):
            yield candidate


def node_address(subnet: IPv4Network, index: int) -> str:
    """The fixed address of the node at this place, from 0."""
    return str(subnet.network_address + FIRST_HOST + index)


def parse_routes(table: str) -> list[IPv4Network]:
    """The networks of `/proc/net/route`: hexadecimal in the byte order of the machine, here little endian."""
    networks = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        networks.append(IPv4Network((_address(columns[1]), str(_address(columns[7])))))
    return networks


def _address(text: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(text), "little"))
