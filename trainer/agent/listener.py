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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from trainer.agent.handshake import MESSAGES, draw, read_greeting
from trainer.agent.local_network import address_of
from trainer.agent.messages import MisfitError, Report, read_report
from trainer.agent.options import AgentOptions
from trainer.agent.wire import AgentConnection, Message

GREETING_S = 5.0
"""Time for the whole authentication."""
LONGEST_GREETING = 1024
LIVE_S = 5.0
"""Seconds without a heartbeat (one every 2 s) after which a new connection of the same node replaces the old one."""
BACK_OFF_S = 0.5
AT_ONCE = 8
"""Connections accepted before the open ones are read again: many new ones must not delay a node's messages."""


@dataclass(frozen=True, kw_only=True)
class NodeConnected:
    node_rank: int


@dataclass(frozen=True, kw_only=True)
class NodeDisconnected:
    node_rank: int
    reason: str = field(default="", compare=False)
    """Error of the connection."""


@dataclass(frozen=True, kw_only=True)
class NodeReported:
    node_rank: int
    report: Report


ListenerEvent = NodeConnected | NodeDisconnected | NodeReported


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pending:
    line: AgentConnection
    asked: str
    since: float
    address: str


class AgentListener:
    def __init__(
        self,
        options: AgentOptions,
        token: bytes,
        note: Callable[[str, str], None],
        *,
        take: Mapping[str, Callable[[int, socket.socket], None]] | None = None,
        greeting_s: float = GREETING_S,
        live_s: float = LIVE_S,
    ) -> None:
        """`note` receives the kind and the text of a line for people; `take` has a function for each
        other purpose: it receives the rank of a connected node, and a connection. OSError: the port is in use."""
        self._run, self._names, self._token, self._note = options.run, options.names, token, note
        self._take = take or {}
        self._greeting_s, self._live_s = greeting_s, live_s
        self._most = 2 * len(options.names) + 16
        self._nodes: dict[int, AgentConnection] = {}
        self._pending: dict[AgentConnection, _Pending] = {}
        """Unauthenticated connections, the oldest first."""
        self._socket = _listen(options, note)
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
        lines.sort(key=lambda line: line in self._pending)  # a connected node before one that would replace it
        news = [event for line in lines for event in self._guarded(line)]
        now = time.monotonic()
        for peer in [one for one in self._pending.values() if now - one.since > self._greeting_s]:
            self._turn_away(peer, f"no greeting in {self._greeting_s:.0f} s")
        if self._socket in ready:
            self._accept()
        return news

    def send(self, message: Message) -> list[int]:
        """Send to all connected nodes; return the ranks of those that it was sent to."""
        return [rank for rank, line in list(self._nodes.items()) if line.send(message)]

    def send_to(self, node_rank: int, message: Message) -> bool:
        return self._nodes[node_rank].send(message) if node_rank in self._nodes else False

    def close(self) -> None:
        for line in (*self._nodes.values(), *self._pending):
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
        while len(self._pending) > most:
            oldest = next(iter(self._pending.values()))
            self._turn_away(oldest, f"{len(self._pending)} other connections are not authenticated either")

    def _ask(self, connected: socket.socket, address: str) -> None:
        try:
            line = AgentConnection(connected, LONGEST_GREETING)
            self._selector.register(line, selectors.EVENT_READ)
        except OSError:
            connected.close()
            return
        peer = _Pending(line=line, asked=draw(), since=time.monotonic(), address=address)
        self._pending[line] = peer
        line.send({"asked": peer.asked})

    def _turn_away(self, peer: _Pending, why: str) -> None:
        self._note("unauthenticated", f"{peer.address} is not a node of this run, its connection was closed: {why}")
        del self._pending[peer.line]
        self._drop(peer.line)

    # ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, line: AgentConnection) -> Iterator[ListenerEvent]:
        """Read a connection; any exception closes this connection only."""
        rank = next((rank for rank, held in self._nodes.items() if held is line), None)
        peer = self._pending.get(line)
        try:
            if peer:
                yield from self._greet(peer)
            elif rank is not None:
                yield from self._read(rank, line)
        except Exception as error:
            if peer and line in self._pending:
                self._turn_away(peer, str(error))
            elif rank is not None and self._nodes.get(rank) is line:
                yield self._leave(rank, str(error))

    def _greet(self, peer: _Pending) -> Iterator[ListenerEvent]:
        line = peer.line
        if not (lines := line.receive(0)):
            return
        greeting = read_greeting(lines[0], peer.asked, len(self._names), self._token)
        rank, holder = greeting.node_rank, self._nodes.get(greeting.node_rank)
        answer, refused = {"proof": greeting.signed(self._token, "coordinator")}, ""
        if greeting.run != self._run:
            refused = f"this is run {self._run}"
        elif greeting.purpose != MESSAGES:
            refused = "" if holder and greeting.purpose in self._take else f"{self._names[rank]} is not connected"
        elif holder and time.monotonic() - holder.received_at < self._live_s:
            refused = f"{self._names[rank]} is connected already"
        if refused:
            line.send({**answer, "refused": refused})
            raise ConnectionError(refused)
        if greeting.purpose != MESSAGES:
            del self._pending[line]
            self._selector.unregister(line)
            line.send(answer)
            self._take[greeting.purpose](rank, line.detach())
            return
        if holder:
            yield self._leave(rank, "a new one replaces it")
        del self._pending[line]
        line.longest = AgentConnection.LONGEST
        self._nodes[rank] = line
        line.send(answer)
        yield NodeConnected(node_rank=rank)

    def _read(self, rank: int, line: AgentConnection) -> Iterator[ListenerEvent]:
        for text in line.receive(0):
            try:
                report = read_report(text, self._names[rank : rank + 1])  # a node reports only on its own ranks
            except MisfitError as error:
                self._note(f"invalid {rank}", f"{self._names[rank]} sent an invalid message: {error}")
                continue
            yield NodeReported(node_rank=rank, report=report)

    def _leave(self, rank: int, reason: str) -> NodeDisconnected:
        self._drop(self._nodes.pop(rank))
        return NodeDisconnected(node_rank=rank, reason=reason)

    def _drop(self, line: AgentConnection) -> None:
        self._selector.unregister(line)
        line.close()


def _listen(options: AgentOptions, note: Callable[[str, str], None]) -> socket.socket:
    """Listen on the address that the other nodes call, or, if a router forwards it, on the interface towards them."""
    try:
        listener = socket.create_server((options.address, options.port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        address = address_of(options.interface)
        where = address or "all of its addresses"
        note("address", f"{options.address} is not an address of this machine: listening on {where}")
        listener = socket.create_server((address, options.port))
    listener.setblocking(False)
    return listener
