"""Connections between the agents of a run: lines of JSON, bounded in length, number and time. One thread uses each."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

MOST_LINES, WINDOW_S = 256, 10.0
"""Maximum number of lines of a connection in this time. Heartbeats come every 2 s; after a 60 s cut, 30 at once."""
SEND_S = 5.0

Message = Mapping[str, Any]


class AgentConnection:
    """Connection to another agent."""

    LONGEST = 64 * 1024
    """Maximum bytes of a line: a rank exit needs up to 50 KiB, if every character of its reason is escaped."""

    def __init__(self, connected: socket.socket, longest: int = LONGEST) -> None:
        self._socket = connected
        with contextlib.suppress(OSError):  # a pair of sockets within a process has no such option
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.longest = longest
        self.received_at = time.monotonic()
        self._rest = b""
        self._ahead: list[bytes] = []  # lines that came with the one that `next` returned
        self._lines, self._window = 0, self.received_at

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Send a message. Return whether it was sent; otherwise the next read raises ConnectionError."""
        try:
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.shut()
            return False
        return True

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the lines received within this time. ConnectionError: the connection has ended, or broke a limit."""
        if self._ahead:
            lines, self._ahead = self._ahead, []
            return lines
        try:
            self._socket.settimeout(timeout_s)
            piece = self._socket.recv(self.LONGEST)
        except (TimeoutError, BlockingIOError):
            return []
        if not piece:
            raise ConnectionError("it was closed")
        self.received_at = time.monotonic()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self.longest:
            raise ConnectionError(f"a line has more than {self.longest} bytes")
        if self.received_at - self._window > WINDOW_S:
            self._lines, self._window = 0, self.received_at
        self._lines += len(lines)
        if self._lines > MOST_LINES:
            raise ConnectionError(f"more than {MOST_LINES} lines in {WINDOW_S:.0f} s")
        return lines

    def next(self, deadline: float) -> bytes:
        """Return the next line, as soon as it is complete. OSError: none was received before this monotonic time."""
        while (left := deadline - time.monotonic()) > 0:
            if lines := self.receive(left):
                self._ahead = lines[1:]
                return lines[0]
        raise TimeoutError("no answer")

    def detach(self) -> socket.socket:
        """Return the socket, for a stream that is no lines of JSON; this object is not used any more."""
        return self._socket

    def shut(self) -> None:
        """Shut down both directions; a reader gets the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._socket.close()
