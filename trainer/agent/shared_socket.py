"""Sockets of one user that share a port, and a filter that lets one of them reach another alone (socket(7))."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux."""


def shared_socket(address: str, port: int) -> socket.socket:
    """Bind a port that further sockets of this user may bind on other addresses, and no other user on any (port 0: a
    free one, which no other run has either)."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        bound.close()
        raise
    return bound


def accept_only(listener: socket.socket, port: int) -> None:
    """Drop the packets that come from any other port. OSError: the kernel has no filters."""
    program: Sequence[tuple[int, int, int, int]] = (
        (0x28, 0, 0, 0),  # load 16 bits at 0 of the TCP header: the source port
        (0x15, 0, 1, port),  # if it differs, skip the next line
        (0x06, 0, 0, 0xFFFFFFFF),  # accept
        (0x06, 0, 0, 0),  # drop
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
