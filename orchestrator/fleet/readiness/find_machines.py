"""Find machines that have an SSH server: those that announce it by mDNS, or those of a subnet."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network

from orchestrator.fleet.fan_out import fan_out
from orchestrator.specs.errors import UsageError

MAX_HOSTS = 1024
ANSWER_S = 1.0
BROWSE = ("avahi-browse", "--parsable", "--resolve", "--terminate", "--no-db-lookup", "_ssh._tcp")
BROWSE_S = 10.0


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


def announced_machines() -> dict[str, str]:
    """Machines that announce their SSH server by mDNS: address, or address:port, to host name.

    Empty where Avahi is not installed, does not run or does not answer within BROWSE_S seconds. What a machine
    announces is not trusted: other than a private IPv4 address, a port and a host name is left out.
    """
    if not shutil.which(BROWSE[0]):
        return {}
    try:
        ran = subprocess.run(BROWSE, capture_output=True, timeout=BROWSE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for line in ran.stdout.decode("utf-8", "replace").splitlines():
        with suppress(ValueError):  # also of a line with other than these fields
            answer, _interface, _protocol, _name, _type, _domain, host, address, port, _text = line.split(";", 9)
            usable = answer == "=" and IPv4Address(address).is_private and 0 < int(port) < 2**16
            if usable and not IPv4Address(address).is_loopback and re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
                found[address if int(port) == 22 else f"{address}:{int(port)}"] = host
    return dict(sorted(found.items())[:MAX_HOSTS])
