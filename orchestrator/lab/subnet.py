"""An IPv4 range for the lab that this computer does not use yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

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
