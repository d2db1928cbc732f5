"""The port on which the ranks of a generation meet, reserved on rank 0's node for as long as they run.

A port that was free when the run was planned may have another run's ranks by now: these listen only seconds later, once
they have imported torch. So rank 0's agent binds the port, and all agents learn it with the order to start. Where it
starts torchrun, it listens there itself (`store_proxy`). A script of the user's starts its own torchrun: then the bound
socket does not listen, and Linux lets torch's store, which sets SO_REUSEADDR, listen on the port all the same.

Connections that have ended stay in TIME_WAIT for a minute, and a run that follows is to have the same port. So it is
bound with SO_REUSEADDR, which that of another agent would pass too as long as it does not listen: a name in the
network's abstract namespace (unix(7)) excludes agents from each other's ports.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

VARIABLES = ("MASTER_PORT", "PET_MASTER_PORT")
"""The second one is read by the torchrun of a user's script."""
OPTION = "--master-port"
PORTS_TRIED = 64


class RendezvousPort:
    """Choose a port for each generation, and hold the newest one."""

    def __init__(self, planned: int, note: Callable[[str, str], None], *, listens: bool = False) -> None:
        """`planned`: port of the first generation, if it is free; 0: all generations have the one of their command.
        `note` receives the kind and the text of a line for people. `listens`: sockets of this user alone share it."""
        self._next, self._note = planned, note
        self._sharing = socket.SO_REUSEPORT if listens else socket.SO_REUSEADDR
        self.held: socket.socket | None = None
        """Bound to the port."""
        self._name: socket.socket | None = None
        """Bound to the name that excludes other agents."""

    def reserve(self) -> int:
        """Release the port of the generation before, and reserve the next free one; 0: there is none."""
        self.close()
        first = self._next
        for port in range(first, min(first + PORTS_TRIED, 65536)) if first else ():
            with ExitStack() as unless_free:
                name = unless_free.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                held = unless_free.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    name.bind(f"\0orch rendezvous {port}")
                    held.bind(("", port))
                except OSError:
                    continue
                unless_free.pop_all()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            held.setsockopt(socket.SOL_SOCKET, self._sharing, 1)
            if port != first:
                self._note("port", f"port {first} is not free: the ranks meet on port {port}")
            self.held, self._name, self._next = held, name, port + 1
            return port
        return 0

    def close(self) -> None:
        """Release the port."""
        for bound in filter(None, (self.held, self._name)):
            bound.close()
        self.held = self._name = None


def planned_port(environ: Mapping[str, str]) -> int:
    """Return the port that the plan names; 0: none."""
    with suppress(ValueError):
        port = int(environ.get(VARIABLES[0], ""))
        return port if 0 < port < 65536 else 0
    return 0


def port_environment(environ: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the variables of `environ` that name the port, with this one."""
    return {name: str(port) for name in VARIABLES if port and name in environ}


def starts_torchrun(argv: Sequence[str]) -> bool:
    """Return whether the agent starts torchrun itself, rather than a script of the user's that does."""
    return list(argv[:1]) == ["torchrun"]


def with_port(argv: Sequence[str], port: int) -> list[str]:
    """Return torchrun's words with this port; 0, or a program of the user: as they are."""
    words = list(argv)
    if port and starts_torchrun(words) and OPTION in words[:-1]:
        words[words.index(OPTION) + 1] = str(port)
    return words
