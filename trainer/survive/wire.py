"""Lines of JSON between the supervisors of a run.

Who reaches the port could tell a run to end or to start again, no more: torch's own store, which listens beside it for
as long as ranks train, is open to anybody too, and to worse (pytorch/pytorch SECURITY.md). Both want a firewall.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

LONGEST = 64 * 1024
SEND_S = 5.0
HELLO_S = 10.0

Message = Mapping[str, Any]


class Line:
    """One connection. `hear` gets each message, and None when it is lost; from a thread of its own."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        connected.settimeout(SEND_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def send(self, message: Message) -> bool:
        """Whether it could be sent; where not, the connection is closed."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()
            return False
        return True

    def listen(self, hear: Callable[[Message | None], None]) -> None:
        def read() -> None:
            with contextlib.suppress(OSError, ValueError):
                while message := self.next():
                    hear(message)
            hear(None)

        threading.Thread(target=read, daemon=True).start()

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None at the end.

        OSError: the connection broke, or nothing came in time. ValueError: what came is no message.
        """
        while b"\n" not in self._rest:
            try:
                self._socket.settimeout(timeout_s or SEND_S)
                piece = self._socket.recv(LONGEST)
            except TimeoutError:
                if timeout_s:
                    raise
                continue
            self._rest += piece
            if not piece or len(self._rest) > LONGEST:
                return None
        text, _, self._rest = self._rest.partition(b"\n")
        try:
            message = json.loads(text)
        except RecursionError:
            raise ValueError("not a message: nested too deep") from None
        if not isinstance(message, dict):
            raise ValueError(f"not a message: {message!r}")
        return message

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def serve(address: str, port: int, welcome: Callable[[Line], None]) -> socket.socket:
    """Listen there, each connection in a thread; OSError where the port is taken."""
    try:
        door = socket.create_server((address, port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:  # the address is a router's or a forwarded one, and none of ours
            raise
        door = socket.create_server(("", port))

    def accept() -> None:
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                connected, _ = door.accept()
                threading.Thread(target=welcome, args=(Line(connected),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return door


def call(address: str, port: int) -> Line:
    """OSError where nobody answers."""
    return Line(socket.create_connection((address, port), timeout=SEND_S))
