"""The port on which ranks meet, in front of torch's store, on rank 0's node: only ranks of this run get through.

torch's store has no authentication, and listens on every address. Here it listens on a loopback address, and accepts
only what comes from the port of the proxy (a socket filter, socket(7)), so that no other user of the node gets in
beside it. The proxy listens at MASTER_PORT, in a process of its own (`store_server`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.agent.connection_owner import ConnectionOwner
from trainer.agent.wire import AgentConnection

STORE_ADDRESS = "127.77.0.1"
"""Loopback address of the store, so that its port can be MASTER_PORT: torchrun looks for a store in its own process by
its port."""
CONNECT_S = 2.0
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux."""


class StoreProxy:
    """The proxy of each generation in turn: a process below this one, so that no other thread holds up a rank."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open(self, reserved: socket.socket, note: Callable[[str, str], None]) -> socket.socket:
        """Listen on the reserved port, in place of the one before. Return the listening socket for the store, which
        belongs to the caller. `reserved`: bound to MASTER_PORT, with SO_REUSEPORT. `note` receives the kind and the
        text of a line for people. OSError: there is no port, descriptor or process left."""
        self.close()
        port = reserved.getsockname()[1]
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(CONNECT_S)
        store = shared_socket(STORE_ADDRESS, port)
        with control, shared_socket("", 0) as source:
            try:
                accept_only(store, source.getsockname()[1])
            except OSError as error:
                why = f"its kernel accepts no socket filter ({error.strerror})"
                note(
                    "filter", f"other users of this machine reach torch's store: {why}; run where no other user logs in"
                )
            for listening in (store, reserved):
                # Before it listens, for connections of an earlier store that have ended (TIME_WAIT); its own pass the
                # option on, so that the next run may bind the port.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.listen(socket.SOMAXCONN)
            descriptors = [one.fileno() for one in (reserved, source, control)]
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "trainer.agent.store_server", *map(str, descriptors)),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                pass_fds=descriptors,
                start_new_session=True,  # a signal to the agent's group is no signal to it
            )
        here, there = socket.socketpair()
        self.take(0, here)
        ConnectionOwner(lambda: AgentConnection(there), once=True)
        return store

    def take(self, node_rank: int, connected: socket.socket) -> None:
        """Ask an authenticated node on this connection from now on."""
        with connected, contextlib.suppress(OSError):
            if self._control:
                socket.send_fds(self._control, [str(node_rank).encode()], [connected.fileno()])

    def close(self) -> None:
        if self._process and self._control:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


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
