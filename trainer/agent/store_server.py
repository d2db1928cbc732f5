"""The process in front of torch's store: lets the ranks of a run through alone (`store_proxy`).

It closes a connection whose address is no node's of this attempt, and asks the agents of the nodes with this address
whether one of their ranks holds it (`connection_owner`). If so, its bytes are passed on. One loop without threads,
bounded in connections, memory and time: `python -m trainer.agent.store_server LISTENER SOURCE CONTROL`, three
descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.agent.log_pipes import LogWriter
from trainer.agent.messages import MisfitError
from trainer.agent.passed_connections import PassedConnections
from trainer.agent.store_messages import MOST_ASKED, StoreConnection, question, read_answer
from trainer.agent.store_proxy import CONNECT_S, STORE_ADDRESS, shared_socket
from trainer.agent.wire import AgentConnection

MOST_WAITING = 256
"""Connections of one address whose owner is being asked for; one more closes the oldest."""
MOST_OF_A_NODE = 512
"""Connections of a node that are passed on: each rank opens one, its torchrun one, a script a few of its own."""
HOLD_S, ANSWER_S = 1.0, 10.0
"""Time for the agent of a new node to connect, and for an answer to a question. torch tries again after that."""
QUESTIONS_AT_ONCE, QUESTIONS_PER_S = 50, 20
"""Questions to a node without a pause, and per second afterwards: looking through its processes costs it some
milliseconds, and a connection between agents has a limit on lines."""
AT_ONCE = 32
BACK_OFF_S = 0.5
LOOK_S = 0.05
"""Time between two looks at connections that wait."""


@dataclass(eq=False)
class _Waiting:
    """A connection whose owner is not known yet."""

    connected: socket.socket
    seen: StoreConnection
    since: float
    asked: set[int] = field(default_factory=set)
    """Ranks of the nodes that were asked for it."""
    denied: set[int] = field(default_factory=set)
    """Those that have answered, or left."""


@dataclass(eq=False)
class _Link:
    """Connection to a node's `ConnectionOwner`."""

    line: AgentConnection
    address: str
    """Empty: this machine's own."""
    batch: list[_Waiting] = field(default_factory=list)
    """Connections that it was asked for."""
    counted_at: float = field(default_factory=time.monotonic)
    """Time at which `unspent` was right."""
    unspent: float = QUESTIONS_AT_ONCE
    """Number of questions that it may be asked without a pause."""

    def may_be_asked(self, now: float) -> bool:
        self.unspent = min(QUESTIONS_AT_ONCE, self.unspent + (now - self.counted_at) * QUESTIONS_PER_S)
        self.counted_at = now
        return not self.batch and self.unspent >= 1

    def may_own(self, seen: StoreConnection) -> bool:
        if self.address:
            return self.address == seen.address
        return seen.address == seen.to_address or seen.address.startswith("127.")


class StoreServer:
    """The loop of the proxy's process."""

    def __init__(
        self, listener: socket.socket, source: socket.socket, control: socket.socket, note: Callable[[str, str], None]
    ) -> None:
        """`source`: bound to the port from which the store is called; `control`: brings connections to agents."""
        self._listener, self._source, self._control, self._note = listener, source, control, note
        self._waiting: dict[socket.socket, _Waiting] = {}
        """The oldest first."""
        self._links: dict[int, _Link] = {}
        self._admitted = 0
        self._resume_at: float | None = None
        """Time at which connections are accepted again, after descriptors or memory ran out."""
        self._selector = selectors.DefaultSelector()
        self._passed = PassedConnections(self._selector)
        for one in (listener, control):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the agent ends or closes its end of the control socket."""
        is_over = False
        while not is_over:
            for key, events in self._selector.select(self._ask()):
                if self._passed.pass_on(key.fileobj, events):
                    continue
                if isinstance(key.fileobj, AgentConnection):
                    self._hear(key.data)
                else:
                    is_over = not self._learn()
                    self._accept()

    def _learn(self) -> bool:
        """Take connections to agents. Return whether the agent of this node is still there."""
        with contextlib.suppress(BlockingIOError):
            while True:
                text, descriptors, _, _ = socket.recv_fds(self._control, 64, 1)
                if not text:
                    return False
                self._link(int(text), socket.socket(fileno=descriptors[0]))
        return True

    def _link(self, node_rank: int, connected: socket.socket) -> None:
        self._unlink(node_rank)
        with contextlib.suppress(OSError):  # it has ended
            address = str(connected.getpeername()[0]) if node_rank else ""
            link = _Link(line=AgentConnection(connected), address=address)
            self._selector.register(link.line, selectors.EVENT_READ, node_rank)
            self._links[node_rank] = link

    # ── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self) -> float | None:
        """Ask the nodes whose connections are waiting, and close those that no node owns. Return the time until there
        is more to do; None: until something happens."""
        if not self._waiting and self._resume_at is None:
            return None
        now = time.monotonic()
        if self._resume_at is not None and now >= self._resume_at:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._resume_at = None
        for node_rank, link in self._links.items():
            if not link.may_be_asked(now):
                continue
            new = [one for one in self._waiting.values() if node_rank not in one.asked and link.may_own(one.seen)]
            if new:
                link.batch, link.unspent = new[:MOST_ASKED], link.unspent - 1
                for one in link.batch:
                    one.asked.add(node_rank)
                link.line.send(question([one.seen for one in link.batch]))
        for one in [one for one in self._waiting.values() if now - one.since > HOLD_S]:
            if self._candidates(one) <= one.denied or now - one.since > ANSWER_S:
                self._refuse(one)
        return LOOK_S

    def _hear(self, node_rank: int) -> None:
        """Read the answer of a node; an invalid one ends its connection."""
        if not (link := self._links.get(node_rank)):
            return
        try:
            for line in link.line.receive(0):
                own, asked = read_answer(line, len(link.batch)), link.batch
                link.batch = []
                for place, waiting in enumerate(asked):
                    waiting.denied.add(node_rank)
                    if place in own:
                        self._admit(waiting, node_rank)
        except OSError:  # the node opens another one
            self._unlink(node_rank)
        except MisfitError as error:
            self._note(f"owner {node_rank}", f"node {node_rank} sent {error}")
            self._unlink(node_rank)

    def _unlink(self, node_rank: int) -> None:
        if link := self._links.pop(node_rank, None):
            self._selector.unregister(link.line)
            link.line.close()
            for waiting in link.batch:
                waiting.asked.discard(node_rank)  # its next connection is asked

    def _candidates(self, one: _Waiting) -> set[int]:
        """Ranks of the nodes that may own a connection."""
        return {rank for rank, link in self._links.items() if link.may_own(one.seen)}

    # ── Connections that wait ─────────────────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connected, (address, port) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                self._note("full", f"no room for another connection to torch's store: {os.strerror(error.errno or 0)}")
                self._selector.unregister(self._listener)
                self._resume_at = time.monotonic() + BACK_OFF_S
                return
            one = _Waiting(
                connected=connected,
                seen=StoreConnection(address, port, *connected.getsockname()),
                since=time.monotonic(),
            )
            self._make_room(one)
            self._waiting[connected] = one

    def _make_room(self, new: _Waiting) -> None:
        """Close another connection from this address, if there are too many; addresses of no node count as one."""
        address = new.seen.address if self._candidates(new) else ""
        same = [one for one in self._waiting.values() if address in ("", one.seen.address)]
        same = [one for one in same if address or not self._candidates(one)]
        if len(same) >= MOST_WAITING:
            self._refuse(next((one for one in same if one.denied), same[0]))

    def _refuse(self, one: _Waiting) -> None:
        self._waiting.pop(one.connected, None)
        one.connected.close()
        why = "no rank of this run owns it" if self._candidates(one) else "this is the address of no node of the run"
        self._note("store", f"a connection from {one.seen.address} to torch's store was closed: {why}")

    def _admit(self, one: _Waiting, node_rank: int) -> None:
        """Connect a rank of this node with the store."""
        if self._waiting.pop(one.connected, None) is None:
            return
        if self._passed.of_node(node_rank) >= MOST_OF_A_NODE:
            one.connected.close()
            self._note("store", f"node {node_rank} has {MOST_OF_A_NODE} connections to torch's store, and gets no more")
            return
        self._admitted += 1
        store = None
        try:
            store = shared_socket(_loopback(self._admitted), self._source.getsockname()[1])
            store.settimeout(CONNECT_S)
            store.connect((STORE_ADDRESS, self._listener.getsockname()[1]))
            self._passed.join(one.connected, store, node_rank)
        except OSError as error:
            for connected in filter(None, (one.connected, store)):
                connected.close()
            self._note("store", f"torch's store could not be called: {error}")


def _loopback(number: int) -> str:
    """An address for each connection, as the port is the same: from 127.128.0.1 on."""
    return f"127.{128 + (number >> 16) % 64}.{number >> 8 & 255}.{number & 255}"


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # ranks that are asked to stop still need the store
        signal.signal(number, signal.SIG_IGN)
    listening, calling, agents = (socket.socket(fileno=int(word)) for word in sys.argv[1:4])
    StoreServer(listening, calling, agents, LogWriter(sys.stdout.buffer).note).run()
