"""Connections to torch's store that belong to the ranks of this node: asked by rank 0's agent, as in RFC 1413.

An address says from which machine a connection comes, and not whose it is: other users and other runs have the same
one. The kernel knows the socket of a connection, and which processes hold it. Each agent answers for the processes
that it has started, on an authenticated connection of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Event, Thread

from trainer.agent import connections, processes
from trainer.agent.messages import MisfitError
from trainer.agent.store_messages import StoreConnection, read_question
from trainer.agent.wire import AgentConnection

RETRY_S = 1.0
ALL_S = 5.0
"""Least time between two looks through all processes of the machine, some 30 ms each. torch tries again meanwhile."""
AGAIN_S = 0.1
"""Pause before the second look at a connection without an owner: the kernel leaves processes out of a list that changes
while it is read, as it does when ranks start (proc(5), `children`)."""
WAIT_S = 0.5
"""Time after which the thread looks whether it is to end."""


def own_connections(asked: Sequence[StoreConnection], masters: Collection[str], *, in_all: bool = True) -> list[int]:
    """Places in `asked` of the connections that processes below this one hold. `masters`: other addresses by which
    they may call rank 0's node, where a router forwards them. `in_all`: look through all processes of the machine for
    one that the kernel does not list. OSError: the kernel does not say."""
    sockets = [_inodes_of(one, masters) for one in asked]
    wanted, held = set().union(*sockets), set[int]()
    for pid in processes.listed_below(os.getpid()):
        if not wanted - held:
            break
        held |= connections.inodes(pid)
    if wanted - held and in_all:
        held = held.union(*(connections.inodes(child.pid) for child in processes.descendants(os.getpid())))
    return [place for place, found in enumerate(sockets) if found & held]


def _inodes_of(one: StoreConnection, masters: Collection[str]) -> set[int]:
    """Inodes of this user's sockets that may be the client's end of a connection."""
    remotes = [(address, one.to_port) for address in dict.fromkeys((one.to_address, *masters))]
    found = [connections.find((one.address, one.port), remote) for remote in remotes]
    return {known[0] for known in found if known and known[1] == os.getuid()}


class ConnectionOwner:
    """Answers questions about the connections of this node's ranks, in a thread of its own."""

    def __init__(self, connect: Callable[[], AgentConnection], masters: Collection[str] = (), *, once: bool = False):
        """`connect` opens the connection to rank 0's agent; `once`: a lost one is not opened again."""
        self._connect, self._masters, self._once = connect, masters, once
        self._looked_at = -ALL_S
        """Time of the last look through all processes."""
        self._ended = Event()
        Thread(target=self._serve, daemon=True, name="connection owner").start()

    def close(self) -> None:
        self._ended.set()

    def _serve(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError, MisfitError):
                connection = self._connect()
                try:
                    self._answer(connection)
                finally:
                    connection.close()
            if self._once:
                return
            self._ended.wait(RETRY_S)

    def _answer(self, connection: AgentConnection) -> None:
        while not self._ended.is_set():
            for line in connection.receive(WAIT_S):
                asked = read_question(line)
                own = own_connections(asked, self._masters, in_all=False)
                if len(own) < len(asked):
                    self._ended.wait(AGAIN_S)
                    in_all = time.monotonic() - self._looked_at > ALL_S
                    self._looked_at = time.monotonic() if in_all else self._looked_at
                    own = own_connections(asked, self._masters, in_all=in_all)
                connection.send({"own": own})
