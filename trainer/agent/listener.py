"""Port of the coordinator, for the nodes of a run; any process in the network can connect to it.

One loop without threads. A peer that is not authenticated in time is disconnected. The number of unauthenticated
connections is limited: a new one replaces the oldest, so that silent peers keep no node out. A node has one connection:
a second one is refused while the first sends heartbeats.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from trainer.agent.handshake import Greeting, draw, read_greeting
from trainer.agent.messages import MisfitError, Report, read_report
from trainer.agent.wire import AgentConnection, Message

GREETING_S = 5.0
"""Time for the whole authentication."""
LONGEST_GREETING = 1024
LIVE_S = 5.0
"""After this time without a heartbeat (one every 2 s), a new connection of the same node replaces the old one."""
BACK_OFF_S = 0.5
AT_ONCE = 8
"""Connections accepted before the open ones are read again: many new ones must not delay a node's messages."""


@dataclass(frozen=True, kw_only=True)
class NodeConnected:
    node_rank: int


@dataclass(frozen=True, kw_only=True)
class NodeDisconnected:
    node_rank: int


@dataclass(frozen=True, kw_only=True)
class NodeReported:
    node_rank: int
    report: Report


ListenerEvent = NodeConnected | NodeDisconnected | NodeReported


@dataclass(frozen=True, kw_only=True)
class ListenerOptions:
    """Address to listen on, and the run that is served."""

    address: str
    port: int
    interface: str
    """Interface to listen on, if the address is not one of this machine."""
    run: str
    names: Sequence[str]
    token: bytes
    greeting_s: float = GREETING_S
    live_s: float = LIVE_S


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pending:
    line: AgentConnection
    asked: str
    since: float
    address: str


class AgentListener:
    def __init__(self, listening: ListenerOptions, note: Callable[[str, str], None]) -> None:
        """`note` receives the kind and the text of a line for people. OSError: the port is in use."""
        self._about = listening
        self._note = note
        self._most = 2 * len(listening.names) + 16
        self._seats: dict[int, AgentConnection] = {}
        self._strangers: dict[AgentConnection, _Pending] = {}
        """Unauthenticated connections, the oldest first."""
        self._socket = _listen(listening, note)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._resume_at: float | None = None
        """Time at which connections are accepted again, after descriptors or memory ran out."""

    def hear(self, timeout_s: float) -> list[ListenerEvent]:
        """Return the events of the run's nodes within this time."""
        if self._resume_at is not None and time.monotonic() >= self._resume_at:
            self._selector.register(self._socket, selectors.EVENT_READ)
            self._resume_at = None
        ready = [key.fileobj for key, _ in self._selector.select(timeout_s)]
        lines = [line for line in ready if isinstance(line, AgentConnection)]
        news: list[ListenerEvent] = []
        for line in sorted(
            lines, key=lambda line: line in self._strangers
        ):  # a connected node before one that would replace it
            news += self._guarded(line)
        now = time.monotonic()
        for stranger in [one for one in self._strangers.values() if now - one.since > self._about.greeting_s]:
            self._turn_away(stranger, f"no greeting in {self._about.greeting_s:.0f} s")
        if self._socket in ready:
            self._accept()
        return news

    def send(self, message: Message) -> list[int]:
        """Send to all connected nodes; return the ranks of those that it was sent to."""
        return [rank for rank, line in list(self._seats.items()) if line.send(message)]

    def send_to(self, node_rank: int, message: Message) -> bool:
        return self._seats[node_rank].send(message) if node_rank in self._seats else False

    def close(self) -> None:
        for line in (*self._seats.values(), *self._strangers):
            line.close()
        self._socket.close()
        self._selector.close()

    # ── Unauthenticated peers ─────────────────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connected, (address, _port) = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # out of descriptors or memory: it would be ready without end
                    self._note("full", f"no room for another connection: {os.strerror(error.errno or 0)}")
                    self._make_room(0)
                    self._selector.unregister(self._socket)
                    self._resume_at = time.monotonic() + BACK_OFF_S
                    return
                continue
            self._make_room(self._most - 1)
            self._ask(connected, address)

    def _make_room(self, most: int) -> None:
        while len(self._strangers) > most:
            self._turn_away(
                next(iter(self._strangers.values())),
                f"{len(self._strangers)} other connections are not authenticated either",
            )

    def _ask(self, connected: socket.socket, address: str) -> None:
        try:
            line = AgentConnection(connected, LONGEST_GREETING)
            self._selector.register(line, selectors.EVENT_READ)
        except OSError:
            connected.close()
            return
        stranger = _Pending(line=line, asked=draw(), since=time.monotonic(), address=address)
        self._strangers[line] = stranger
        line.send({"asked": stranger.asked})

    def _turn_away(self, stranger: _Pending, why: str) -> None:
        self._note("stranger", f"{stranger.address} is not a node of this run, its connection was closed: {why}")
        del self._strangers[stranger.line]
        self._drop(stranger.line)

    def _drop(self, line: AgentConnection) -> None:
        self._selector.unregister(line)
        line.close()

    # ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, line: AgentConnection) -> Iterator[ListenerEvent]:
        """Read a connection; any exception closes this connection only."""
        rank = next((rank for rank, held in self._seats.items() if held is line), None)
        stranger = self._strangers.get(line)
        try:
            if stranger:
                yield from self._greet(stranger)
            elif rank is not None:
                yield from self._read(rank, line)
        except Exception as error:
            if stranger and line in self._strangers:
                self._turn_away(stranger, str(error))
            elif rank is not None and self._seats.get(rank) is line:
                self._note(f"left {rank}", f"the connection of {self._about.names[rank]} has ended: {error}")
                yield self._leave(rank)

    def _greet(self, stranger: _Pending) -> Iterator[ListenerEvent]:
        line, token = stranger.line, self._about.token
        if not (lines := line.receive(0)):
            return
        greeting = read_greeting(lines[0], stranger.asked, len(self._about.names), token)
        rank, holder = greeting.node_rank, self._seats.get(greeting.node_rank)
        if greeting.run != self._about.run:
            self._refuse(stranger, greeting, f"this is run {self._about.run}")
        elif holder and time.monotonic() - holder.heard < self._about.live_s:
            self._refuse(stranger, greeting, f"{self._about.names[rank]} is connected already")
        else:
            if holder:
                yield self._leave(rank)
            del self._strangers[line]
            line.longest = AgentConnection.LONGEST
            self._seats[rank] = line
            line.send({"proof": greeting.signed(token, "coordinator")})
            yield NodeConnected(node_rank=rank)

    def _refuse(self, stranger: _Pending, greeting: Greeting, why: str) -> None:
        stranger.line.send({"proof": greeting.signed(self._about.token, "coordinator"), "refused": why})
        raise ConnectionError(why)

    def _read(self, rank: int, line: AgentConnection) -> Iterator[ListenerEvent]:
        for text in line.receive(0):
            try:
                report = read_report(text, self._about.names[rank : rank + 1])  # a node reports only on its own ranks
            except MisfitError as error:
                self._note(f"said {rank}", f"{self._about.names[rank]} sent an invalid message: {error}")
                continue
            yield NodeReported(node_rank=rank, report=report)

    def _leave(self, rank: int) -> NodeDisconnected:
        self._drop(self._seats.pop(rank))
        return NodeDisconnected(node_rank=rank)


def _listen(listening: ListenerOptions, note: Callable[[str, str], None]) -> socket.socket:
    """Listen on the address that the other nodes call, or, if a router forwards it, on the interface towards them."""
    try:
        listener = socket.create_server((listening.address, listening.port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        address = _address_of(listening.interface)
        note(
            "address",
            f"{listening.address} is not an address of this machine: listening on {address or 'all of its addresses'}",
        )
        listener = socket.create_server((address, listening.port))
    listener.setblocking(False)
    return listener


def _address_of(interface: str) -> str:
    """Return the IPv4 address of an interface; empty: it does not exist."""
    addresses = psutil.net_if_addrs().get(interface, [])
    return next((one.address for one in addresses if one.family == socket.AF_INET), "")
