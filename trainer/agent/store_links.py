"""Connections to the agents of the other nodes, for the process that holds torch's store (`store_server`)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence


class StoreLinks:
    """Connections for the torchrun of each generation in turn."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def open(self, reserved: socket.socket) -> Sequence[socket.socket]:
        """Listen on the reserved port, and return the sockets for the next torchrun, which are its to close: the
        listening one, and that by which connections come. OSError: there is no descriptor left."""
        self.close()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        try:
            reserved.listen(socket.SOMAXCONN)
            return reserved.dup(), control
        except OSError:
            control.close()
            raise

    def take(self, node_rank: int, connected: socket.socket) -> None:
        """Let this authenticated connection be for questions to a node. If it is lost, the node opens another one."""
        with connected, contextlib.suppress(OSError):
            if self._control:
                socket.send_fds(self._control, [str(node_rank).encode()], [connected.fileno()])

    def close(self) -> None:
        if self._control:
            self._control.close()
        self._control = None
