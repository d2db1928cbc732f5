"""Bytes on the TCP connections of this machine's network namespace, from the kernel (sock_diag(7)).

A hint that silences a statement and never makes one: NVLink, shared memory and InfiniBand are not seen.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_ESTABLISHED, _INFO = 1 << 1, 2
_BYTES_AT = 120
"""Place of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info`."""
_LISTEN = "0A"
_ANY_COOKIE = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class TcpConnection:
    bytes: int
    """Acknowledged and received so far."""
    ports: tuple[int, int]


def connections() -> dict[int, TcpConnection] | None:
    """Established connections by inode; None where the kernel does not say."""
    found: dict[int, TcpConnection] = {}
    with suppress(OSError, struct.error):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link:
            link.settimeout(1.0)
            for family in (socket.AF_INET, socket.AF_INET6):
                found |= dict(_dump(link, family))
        return found
    return None


def find(local: tuple[str, int], remote: tuple[str, int]) -> tuple[int, int] | None:
    """Inode and user of the IPv4 connection between these addresses and ports; None: there is none here. OSError: the
    kernel does not say."""
    addresses = [socket.inet_aton(address).ljust(16, b"\0") for address, _ in (local, remote)]
    request = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 2**32 - 1)
    request += struct.pack("!HH", local[1], remote[1]) + b"".join(addresses) + struct.pack("=IQ", 0, _ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link:
        link.settimeout(1.0)
        link.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, 1, 1, 0) + request)
        answer = link.recv(1 << 14)
    if struct.unpack_from("=IH", answer)[1] == _BY_FAMILY:
        user, inode = struct.unpack_from("=II", answer, 80)
        return inode, user
    (code,) = struct.unpack_from("=i", answer, 16)
    if code != -errno.ENOENT:
        raise OSError(-code, "the kernel has no tcp_diag")
    return None


def inodes(process: int) -> set[int]:
    """Sockets that a process holds open."""
    found = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError, ValueError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def listening() -> set[int]:
    """Inodes of the sockets that wait for connections."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            rows = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
            found |= {int(row[9]) for row in rows if row[3] == _LISTEN}
    return found


def _dump(link: socket.socket, family: int) -> Iterator[tuple[int, TcpConnection]]:
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED) + bytes(48)
    link.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
    while True:
        received = link.recv(1 << 18)
        at = 0
        while at < len(received):
            length, kind = struct.unpack_from("=IH", received, at)
            if kind == _DONE:
                return
            if kind == _ERROR or length < 16:
                raise OSError("the kernel has no tcp_diag")
            yield from _connection(received[at : at + length])
            at += (length + 3) & ~3


def _connection(message: bytes) -> Iterator[tuple[int, TcpConnection]]:
    ports = struct.unpack_from("!HH", message, 20)
    (inode,) = struct.unpack_from("=I", message, 84)
    at = 88
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INFO and length >= 4 + _BYTES_AT + 16:
            acknowledged, received = struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT)
            yield inode, TcpConnection(bytes=acknowledged + received, ports=(ports[0], ports[1]))
        at += max(4, (length + 3) & ~3)
