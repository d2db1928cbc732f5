"""Names, addresses and interfaces of this machine, from the kernel and its resolver: an image may have no package for
them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from ipaddress import IPv4Address, IPv4Network

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_ANY_PORT = 9


class LocalNetwork:
    """The network as this machine sees it; tests put another one in its place."""

    def hostname(self) -> str:
        return socket.gethostname()

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def addresses_of(self, name: str) -> list[str]:
        """IPv4 addresses of a name; none: it is unknown."""
        with contextlib.suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            return list(dict.fromkeys(str(address[0]) for *_, address in found))
        return []

    def interfaces(self) -> list[str]:
        """Names of the interfaces that have an IPv4 address."""
        return [name for _, name in socket.if_nameindex() if self.address_of(name)]

    def address_of(self, interface: str) -> str:
        """IPv4 address of an interface; empty if it has none."""
        return address_of(interface)

    def is_in_network(self, address: str, interface: str) -> bool:
        """Return whether an address is in the network of an interface."""
        mask = _ask(interface, _SIOCGIFNETMASK)
        own = address_of(interface)
        return bool(own and mask) and IPv4Address(address) in IPv4Network(f"{own}/{mask}", strict=False)

    def address_towards(self, address: str) -> str:
        """This machine's address on the route to another one; empty: there is no route. Nothing is sent."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
            any_socket.connect((address, _ANY_PORT))
            return str(any_socket.getsockname()[0])
        return ""

    def interface_with(self, address: str) -> str:
        """Interface with this address; empty: none has it."""
        return next((name for name in self.interfaces() if address and self.address_of(name) == address), "")


def address_of(interface: str) -> str:
    """IPv4 address of a network interface; empty if it has none (netdevice(7))."""
    return _ask(interface, _SIOCGIFADDR)


def _ask(interface: str, request: int) -> str:
    words = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), request, words)[20:24])
    return ""
