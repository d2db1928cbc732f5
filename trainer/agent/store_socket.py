"""The socket of torch's store, which is given connections that were accepted elsewhere in its process.

torch's store has no authentication, and takes connections from its listening socket alone. So that one is private: it
is on a loopback address, and a socket filter (socket(7)) drops all packets but those of this process's own port. This
process calls it some times in advance. Once the store's event loop (libuv) watches the descriptor of a call, a
connection that is to reach the store is put in its place (dup(2)). From then on the store and the rank have one
connection without anything between them: a message costs what it costs without us.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.agent.shared_socket import accept_only, shared_socket

STORE_ADDRESS = "127.77.0.1"
"""Loopback address of the store, so that its port can be MASTER_PORT: torchrun looks for a store in its own process by
its port."""
CONNECT_S = 2.0
SPARE = 8
"""Calls in advance: on a busy machine, the store takes some time to accept one."""
LOOK_S = 0.05
"""Longest time between two looks for calls that the store has accepted."""

Peer = tuple[str, int]


@dataclass(frozen=True)
class _Accepted:
    """A call that the store has accepted."""

    own: socket.socket
    """This process's end."""
    number: int
    """The store's descriptor."""
    watches: Sequence[tuple[int, int]]
    """Event sets that watch it, each with the events."""


class StoreSocket:
    """Listening socket for torch's store on a port, and the connections that it is given."""

    def __init__(self, port: int) -> None:
        """OSError: the port is another user's, or there is no filter in the kernel: any local user would get in."""
        self._waiting: deque[socket.socket] = deque()
        """Connections for the store."""
        self._since = 0.0
        """Time from which the oldest of them waits, or the newest was handed over."""
        self._calls: dict[Peer, socket.socket] = {}
        """This process's ends of calls that the store has not accepted, by the address that it sees."""
        self._accepted: deque[_Accepted] = deque()
        self._given: dict[int, Peer] = {}
        """Descriptors of the store and their peers, when they were given to it."""
        self._count = 0
        self._source = shared_socket("", 0)
        self.listening = shared_socket(STORE_ADDRESS, port)
        """For `master_listen_fd`."""
        self._address = self.listening.getsockname()
        accept_only(self.listening, self._source.getsockname()[1])
        self.listening.listen(socket.SOMAXCONN)

    def give(self, connected: socket.socket) -> None:
        """Let the store have this connection, once it is there. OSError: it has ended."""
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(connected)

    def given_from(self, address: str) -> int:
        """Number of connections from an address that the store has, or is about to get."""
        self._given = {number: peer for number, peer in self._given.items() if _peer(number) == peer}
        peers = [*self._given.values(), *(_peer(connected.fileno()) for connected in self._waiting)]
        return sum(peer is not None and peer[0] == address for peer in peers)

    def hand_over(self) -> float | None:
        """Put connections in the place of calls that the store has accepted. Return the time until the next look; None:
        there is nothing to wait for. OSError: one was not handed over and is closed, or the store cannot be called."""
        if self._calls:
            self._find_accepted()
        while self._waiting and self._accepted:
            call, connected = self._accepted.popleft(), self._waiting.popleft()
            with call.own, connected:
                self._since = time.monotonic()
                if rank := _peer(connected.fileno()):
                    self._given[call.number] = rank
                _replace(call, connected)
        while len(self._calls) + len(self._accepted) < len(self._waiting) + SPARE:
            self._call()
        if self._waiting:
            return min(LOOK_S, max(0.0005, (time.monotonic() - self._since) / 4))
        return LOOK_S if self._calls else None

    def _find_accepted(self) -> None:
        for number in _descriptors():
            if (peer := _peer(number)) in self._calls and (watches := tuple(_watches(number))):
                self._accepted.append(_Accepted(self._calls.pop(peer), number, watches))

    def _call(self) -> None:
        self._count += 1
        own = shared_socket(_loopback(self._count), self._source.getsockname()[1])
        try:
            own.settimeout(CONNECT_S)
            own.connect(self._address)
        except OSError:
            own.close()
            raise
        self._calls[own.getsockname()] = own


def _replace(call: _Accepted, connected: socket.socket) -> None:
    """Let its descriptor be this connection, and the event sets that watched the one before watch it."""
    os.dup2(connected.fileno(), call.number, inheritable=False)
    try:
        for epoll, events in call.watches:
            with select.epoll.fromfd(os.dup(epoll)) as events_of, suppress(FileExistsError):
                events_of.register(call.number, events)
    except OSError:
        connected.shutdown(socket.SHUT_RDWR)
        raise


def _watches(number: int) -> Iterator[tuple[int, int]]:
    """Event sets of this process that watch a descriptor (proc(5), fdinfo), each with the events."""
    for epoll in _descriptors():
        with suppress(OSError):
            for line in Path(f"/proc/self/fdinfo/{epoll}").read_text().splitlines():
                words = line.split()
                if words[0] == "tfd:" and int(words[1]) == number:
                    yield epoll, int(words[3], 16)


def _descriptors() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


def _peer(number: int) -> Peer | None:
    """Address and port of the other end; None: this is no such connection."""
    try:
        seen = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=number)
    except OSError:  # no socket
        return None
    try:
        address, port = seen.getpeername()
    except (OSError, ValueError):  # ValueError: two words only have IPv4's
        return None
    finally:
        seen.detach()  # it is not ours to close
    return address, port


def _loopback(number: int) -> str:
    """An address for each call, as the port is the same: from 127.128.0.1 on."""
    return f"127.{128 + (number >> 16) % 64}.{number >> 8 & 255}.{number & 255}"
