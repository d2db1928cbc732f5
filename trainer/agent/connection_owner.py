"""Which connections to torch's store belong to the ranks of this node: asked by rank 0's agent, as in RFC 1413.

An address says from which machine a connection comes, and not whose it is: other users and other runs have the same
one. The kernel knows the socket of a connection, and which processes hold it. Each agent answers for the processes
that it has started, on an authenticated connection of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Event, Thread

from trainer.agent import connections, processes
from trainer.agent.messages import MisfitError
from trainer.agent.store_messages import StoreConnection, read_question
from trainer.agent.wire import AgentConnection

RETRY_S = 1.0
WAIT_S = 0.5
"""Time after which the thread looks whether it is to end."""


class OwnConnections:
    """Finds the connections of the processes below an agent."""

    def __init__(self, masters: Collection[str] = (), agent: int = 0) -> None:
        """`masters`: other addresses by which they may call rank 0's node, where a router forwards them. `agent`: its
        process; 0: this one."""
        self._masters, self._agent = masters, agent or os.getpid()

    def places(self, asked: Sequence[StoreConnection]) -> list[int]:
        """Places of these connections in `asked`. OSError: the kernel does not say."""
        sockets = [_inodes_of(one, self._masters) for one in asked]
        wanted, held = set().union(*sockets), set[int]()
        for pid in processes.listed_below(self._agent) if wanted else ():
            held |= connections.inodes(pid)
            if wanted <= held:
                break
        return [place for place, found in enumerate(sockets) if found & held]


def _inodes_of(one: StoreConnection, masters: Collection[str]) -> set[int]:
    """Inodes of this user's sockets that may be the client's end of a connection."""
    remotes = [(address, one.to_port) for address in dict.fromkeys((one.to_address, *masters))]
    found = [connections.find((one.address, one.port), remote) for remote in remotes]
    return {known[0] for known in found if known and known[1] == os.getuid()}


class ConnectionOwner:
    """Answers questions about the connections of this node's ranks, in a thread of its own."""

    def __init__(self, connect: Callable[[], AgentConnection], masters: Collection[str] = ()) -> None:
        """`connect` opens the connection to rank 0's agent, also if it was lost; `masters`: see `OwnConnections`."""
        self._connect, self._own = connect, OwnConnections(masters)
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
            self._ended.wait(RETRY_S)

    def _answer(self, connection: AgentConnection) -> None:
        while not self._ended.is_set():
            for line in connection.receive(WAIT_S):
                connection.send({"own": self._own.places(read_question(line))})
