"""Lines of JSON between the agents of a run: bounded in length, in number and in time. One thread uses a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

MOST_LINES, WINDOW_S = 256, 10.0
"""Of one connection in this time. A heartbeat comes every 2 s; after a minute's cut, 30 at once."""
SEND_S = 5.0

Message = Mapping[str, Any]


class AgentConnection:
    """One connection."""

    LONGEST = 64 * 1024
    """Bytes of a line: an ending with its reason needs up to 50 KiB, where every letter is escaped."""

    def __init__(self, connected: socket.socket, longest: int = LONGEST) -> None:
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.longest = longest
        self.heard = time.monotonic()
        self._rest = b""
        self._lines, self._window = 0, self.heard

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Whether it could be sent; where not, reading from the connection finds its end."""
        try:
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.shut()
            return False
        return True

    def receive(self, timeout_s: float) -> list[bytes]:
        """The lines that have come, after this time at the latest. ConnectionError: it has ended, or is to be ended, as
        its text says."""
        try:
            self._socket.settimeout(timeout_s)
            piece = self._socket.recv(self.LONGEST)
        except (TimeoutError, BlockingIOError):
            return []
        if not piece:
            raise ConnectionError("it was closed")
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self.longest:
            raise ConnectionError(f"a line has more than {self.longest} bytes")
        if self.heard - self._window > WINDOW_S:
            self._lines, self._window = 0, self.heard
        self._lines += len(lines)
        if self._lines > MOST_LINES:
            raise ConnectionError(f"more than {MOST_LINES} lines in {WINDOW_S:.0f} s")
        return lines

    def next(self, deadline: float) -> bytes:
        """One line, of a peer that sends no second one unasked. OSError: none came before this (monotonic) time."""
        while (left := deadline - time.monotonic()) > 0:
            if lines := self.receive(left):
                return lines[0]
        raise TimeoutError("no answer")

    def shut(self) -> None:
        """Both ways; whoever reads from it finds the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._socket.close()
