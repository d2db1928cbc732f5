"""Messages on a socket pair between an agent, its warm process, torchrun and the ranks: JSON, with open files."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_SIZE = 8
"""Bytes that say how long the text after them is."""
MOST_FILES = 8


def send(to: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message and open files, by their descriptors. OSError: the other end has ended."""
    text = json.dumps(message).encode()
    socket.send_fds(to, [len(text).to_bytes(_SIZE, "big")], files)
    to.sendall(text)


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive a message and the descriptors of its files, none of them inherited by another program.

    EOFError: the other end has ended."""
    size, files, _, _ = socket.recv_fds(source, _SIZE, MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    try:
        size += _exactly(source, _SIZE - len(size))
        return dict(json.loads(_exactly(source, int.from_bytes(size, "big")))), files
    except EOFError:
        for one in files:
            os.close(one)
        raise


def _exactly(source: socket.socket, size: int) -> bytes:
    text = bytearray()
    while len(text) < size:
        if not (piece := source.recv(size - len(text))):
            raise EOFError
        text += piece
    return bytes(text)
