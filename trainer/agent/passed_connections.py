"""Connections whose bytes are passed on, each with memory for a slow receiver alone."""

from __future__ import annotations

import contextlib
import selectors
import socket
from dataclasses import dataclass, field

ROOM = 256 * 1024
"""Bytes of one direction that wait for a slow receiver; then nothing more is read from the sender."""
PIECE = 64 * 1024


@dataclass(eq=False)
class _End:
    """One end of a connection that is passed on."""

    connected: socket.socket
    node_rank: int
    other: _End | None = None
    unsent: bytearray = field(default_factory=bytearray)
    """Bytes from the other end."""
    is_read: bool = False
    """True if its stream has ended."""
    is_shut: bool = False
    """True if the end of the other's stream was passed on to it."""
    watched: int = selectors.EVENT_READ
    """Events that are waited for."""


class PassedConnections:
    """Pairs of connections in a selector: what comes from either goes to the other."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._ends: dict[socket.socket, _End] = {}

    def of_node(self, node_rank: int) -> int:
        return sum(end.node_rank == node_rank for end in self._ends.values()) // 2

    def join(self, one: socket.socket, other: socket.socket, node_rank: int) -> None:
        """Pass on between two connections, of a node and of the store. OSError: one has ended; both are closed."""
        ends = [_End(connected=connected, node_rank=node_rank) for connected in (one, other)]
        try:
            for end, opposite in zip(ends, reversed(ends), strict=True):
                end.other = opposite
                end.connected.setblocking(False)
                end.connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ends[end.connected] = end
                self._selector.register(end.connected, selectors.EVENT_READ)
        except OSError:
            for end in ends:
                self._forget(end.connected)
            raise

    def pass_on(self, connected: object, events: int) -> bool:
        """Pass on what is ready to be read or sent. Return whether this connection is one of these."""
        end = self._ends.get(connected)  # type: ignore[call-overload]  # whatever is in the selector
        if end is None:
            return False
        try:
            if events & selectors.EVENT_WRITE:
                _send(end)
            if events & selectors.EVENT_READ:
                self._read(end)
        except OSError:
            self._end(end)
        else:
            self._watch(end)
        return True

    def _read(self, end: _End) -> None:
        assert end.other  # noqa: S101  # both ends exist before either is read
        piece = end.connected.recv(PIECE)
        end.is_read = not piece
        end.other.unsent += piece
        _send(end.other)

    def _watch(self, end: _End) -> None:
        """Wait for what either end can do next; end both once all was passed on."""
        assert end.other  # noqa: S101
        if all(one.is_read and one.is_shut for one in (end, end.other)):
            self._end(end)
            return
        for one, other in ((end, end.other), (end.other, end)):
            events = 0 if one.is_read or len(other.unsent) >= ROOM else selectors.EVENT_READ
            events |= selectors.EVENT_WRITE if one.unsent else 0
            if events == one.watched:
                continue
            if not one.watched:
                self._selector.register(one.connected, events)
            elif events:
                self._selector.modify(one.connected, events)
            else:
                self._selector.unregister(one.connected)
            one.watched = events

    def _end(self, end: _End) -> None:
        for one in filter(None, (end, end.other)):
            self._forget(one.connected)

    def _forget(self, connected: socket.socket) -> None:
        self._ends.pop(connected, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connected)
        connected.close()


def _send(end: _End) -> None:
    """Send what waits for this end, and then the end of the stream."""
    with contextlib.suppress(BlockingIOError):
        while end.unsent:
            del end.unsent[: end.connected.send(end.unsent)]
    if end.other and end.other.is_read and not end.unsent and not end.is_shut:
        end.is_shut = True
        end.connected.shutdown(socket.SHUT_WR)
