"""The port on which ranks meet, in front of torch's store, on rank 0's node: only ranks of this run get through.

torch's store has no authentication. Here a thread of its process accepts the connections at MASTER_PORT. It closes one
whose address is no node's of this attempt, and asks the agents of the nodes with this address whether one of their
ranks holds it (`connection_owner`). If so, the store gets it (`store_socket`). Bounded in connections, memory and time.
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
import traceback
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Thread

from contract.event_lines import encode_event
from contract.events import RankFailed
from trainer.agent.connection_owner import OwnConnections
from trainer.agent.messages import MisfitError
from trainer.agent.store_messages import MOST_ASKED, StoreConnection, question, read_answer
from trainer.agent.store_socket import LOOK_S, StoreSocket
from trainer.agent.wire import AgentConnection

MOST_WAITING, MOST_WAITING_OF_ONE = 384, 128
"""Connections whose owner is being asked for, in all and of one address; one more closes the oldest. torchrun in the
same process needs descriptors, too."""
MOST_OF_AN_ADDRESS = 512
"""Connections of an address that the store gets: each rank opens one, its torchrun one, a script a few of its own."""
HOLD_S, ANSWER_S = 1.0, 10.0
"""Time for the agent of a new node to connect, and for an answer to a question. torch tries again after that."""
QUESTIONS_AT_ONCE, QUESTIONS_PER_S = 50, 20
"""Questions to a node without a pause, and per second afterwards: looking through its processes costs it some
milliseconds, and a connection between agents has a limit on lines."""
UNANSWERED = 4
"""Most questions to a node that wait for an answer: a rank need not wait for the answer to another one."""
AT_ONCE = 32
BACK_OFF_S = 0.5


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
    """Means to ask a node: a connection to its `ConnectionOwner`, or none for this machine."""

    line: AgentConnection | None
    address: str
    """Empty: this machine's own."""
    batches: deque[list[_Waiting]] = field(default_factory=deque)
    """Connections in each question that it has not answered."""
    counted_at: float = field(default_factory=time.monotonic)
    """Time at which `unspent` was right."""
    unspent: float = QUESTIONS_AT_ONCE
    """Number of questions that it may be asked without a pause."""

    def may_be_asked(self, now: float) -> bool:
        self.unspent = min(QUESTIONS_AT_ONCE, self.unspent + (now - self.counted_at) * QUESTIONS_PER_S)
        self.counted_at = now
        return len(self.batches) < UNANSWERED and self.unspent >= 1


class StoreServer:
    """Serves the port in a thread, for as long as the agent does not end."""

    def __init__(
        self, listener: socket.socket, control: socket.socket, note: Callable[[str, str], None], agent: int
    ) -> None:
        """`control`: brings connections to agents. `note` receives the kind and the text of a line for people. `agent`:
        number of the process whose descendants are the ranks here. OSError: see `StoreSocket`."""
        self._listener, self._control, self._note = listener, control, note
        self.store = StoreSocket(listener.getsockname()[1])
        self._waiting: dict[socket.socket, _Waiting] = {}
        """The oldest first."""
        self._links = {0: _Link(line=None, address="")}
        self._own = OwnConnections(agent=agent)
        self._resume_at: float | None = None
        """Time at which connections are accepted again, after descriptors or memory ran out."""
        self._selector = selectors.DefaultSelector()
        for one in (listener, control):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        Thread(target=self._run, daemon=True, name="torch's store").start()

    def _run(self) -> None:
        """Serve. An error, or the end of the agent, ends torchrun and its ranks: they would wait for the store."""
        try:
            self._serve()
        except Exception as error:
            traceback.print_exc()
            what = f"the port of torch's store has failed: {type(error).__name__}"
            print(encode_event(RankFailed(error=what, message=str(error))), file=sys.stderr, flush=True)
        finally:  # also where printing fails, since the agent reads no more
            self._listener.close()
            os.kill(os.getpid(), signal.SIGTERM)

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            for key, _ in self._selector.select(self._next_s()):
                if isinstance(key.fileobj, AgentConnection):
                    self._hear(key.data)
                else:
                    is_over = not self._learn()
                    self._accept()

    def _next_s(self) -> float | None:
        """Do what is due, and return the time until there is more to do; None: until something happens."""
        self._ask()
        try:
            hand_over_s = self.store.hand_over()
        except OSError as error:
            self._note("store", f"torch's store could not be given a connection: {error}")
            hand_over_s = LOOK_S
        waits = LOOK_S if self._waiting or self._resume_at is not None else None
        return min((one for one in (waits, hand_over_s) if one is not None), default=None)

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
            address, line = str(connected.getpeername()[0]), AgentConnection(connected)
            self._selector.register(line, selectors.EVENT_READ, node_rank)
            self._links[node_rank] = _Link(line=line, address=address)

    # ── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self) -> None:
        """Ask the nodes whose connections are waiting, and close those that no node owns."""
        now = time.monotonic()
        if self._resume_at is not None and now >= self._resume_at:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._resume_at = None
        for node_rank, link in self._links.items() if self._waiting else ():
            waiting = self._waiting.values()
            new = [one for one in waiting if node_rank not in one.asked and node_rank in self._candidates(one)]
            if new and link.may_be_asked(now):
                link.batches.append(new[:MOST_ASKED])
                link.unspent -= 1
                for one in new[:MOST_ASKED]:
                    one.asked.add(node_rank)
                seen = [one.seen for one in new[:MOST_ASKED]]
                if link.line:
                    link.line.send(question(seen))
                else:
                    self._answered(link, node_rank, self._own.places(seen))
        for one in [one for one in self._waiting.values() if now - one.since > HOLD_S]:
            if self._candidates(one) <= one.denied or now - one.since > ANSWER_S:
                self._refuse(one)

    def _hear(self, node_rank: int) -> None:
        """Read the answer of a node; an invalid one ends its connection."""
        if not (link := self._links.get(node_rank)) or not link.line:
            return
        try:
            for line in link.line.receive(0):
                asked = len(link.batches[0]) if link.batches else 0
                self._answered(link, node_rank, read_answer(line, asked))
        except OSError:  # the node opens another one
            self._unlink(node_rank)
        except MisfitError as error:
            self._note(f"owner {node_rank}", f"node {node_rank} sent {error}")
            self._unlink(node_rank)

    def _answered(self, link: _Link, node_rank: int, own: Collection[int]) -> None:
        for place, waiting in enumerate(link.batches.popleft() if link.batches else ()):
            waiting.denied.add(node_rank)
            if place in own:
                self._admit(waiting)

    def _unlink(self, node_rank: int) -> None:
        if (link := self._links.pop(node_rank, None)) and link.line:
            self._selector.unregister(link.line)
            link.line.close()
            for waiting in (one for batch in link.batches for one in batch):
                waiting.asked.discard(node_rank)  # its next connection is asked

    def _candidates(self, one: _Waiting) -> set[int]:
        """Ranks of the nodes that may own a connection."""
        found = {rank for rank, link in self._links.items() if link.address == one.seen.address}
        is_own = one.seen.address == one.seen.to_address or one.seen.address.startswith("127.")
        return {*found, 0} if is_own else found

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
        if len(same) < MOST_WAITING_OF_ONE:
            same = list(self._waiting.values()) if len(self._waiting) >= MOST_WAITING else []
        if same:
            self._refuse(next((one for one in same if one.denied), same[0]))

    def _refuse(self, one: _Waiting) -> None:
        self._waiting.pop(one.connected, None)
        one.connected.close()
        why = "no rank of this run owns it" if self._candidates(one) else "this is the address of no node of the run"
        self._note("store", f"a connection from {one.seen.address} to torch's store was closed: {why}")

    def _admit(self, one: _Waiting) -> None:
        """Let the store have the connection of a rank."""
        if self._waiting.pop(one.connected, None) is None:
            return
        address = one.seen.address
        if self.store.given_from(address) >= MOST_OF_AN_ADDRESS:
            one.connected.close()
            self._note("store", f"{address} has {MOST_OF_AN_ADDRESS} connections to torch's store, and gets no more")
            return
        try:
            self.store.give(one.connected)
        except OSError as error:
            one.connected.close()
            self._note("store", f"torch's store could not be called: {error}")
