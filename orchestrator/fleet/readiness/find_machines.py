"""Find the machines of a subnet that have an SSH server."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv4Network

from orchestrator.fleet.fan_out import fan_out
from orchestrator.specs.errors import UsageError

MAX_HOSTS = 1024
ANSWER_S = 1.0


def subnet(text: str) -> IPv4Network:
    """The network of `--scan`. UsageError: it is none, not a private one, or too large."""
    example = "such as --scan 192.168.1.0/24"
    try:
        network = IPv4Network(text, strict=False)
    except ValueError:
        raise UsageError(f"--scan {text}: not an IPv4 network", hint=example) from None
    if not network.is_private or network.num_addresses > MAX_HOSTS:
        raise UsageError(f"--scan {text}: expected a private network of at most {MAX_HOSTS} addresses", hint=example)
    return network


def find_machines(network: IPv4Network, *, port: int = 22) -> tuple[str, ...]:
    """Addresses at which an SSH server answers; nothing but its greeting is read."""

    def greets(address: str) -> bool:
        with suppress(OSError), socket.create_connection((address, port), timeout=ANSWER_S) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    found = fan_out([str(host) for host in network.hosts()], greets, timeout_s=60.0)
    return tuple(outcome.item for outcome in found if outcome.result)
