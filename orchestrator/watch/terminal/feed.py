"""The state of a run and its nodes, fed by a thread, read by a screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from orchestrator.specs.errors import OrchError
from orchestrator.specs.run_events import Tick
from orchestrator.state.run_state import TailLine
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.live import LiveState

if TYPE_CHECKING:
    from orchestrator.fleet.monitor import FleetWatch

FIRST_S = 8.0
"""Longest wait for the first answer of every node: that to a connection takes five seconds."""
LOOK_S = 0.05


class LiveFeed:
    """Views of what a watch reports, from any thread."""

    def __init__(self, opening: Callable[[], AbstractContextManager[FleetWatch]], state: LiveState) -> None:
        """`opening` is called in the thread: what it imports takes longer than to draw a first screen."""
        self._opening, self._state, self._lock = opening, state, Lock()
        self._watch: FleetWatch | None = None
        self._closed = Event()
        self.error: OrchError | None = None
        """Reason why there is nothing to watch."""

    def start(self) -> None:
        context = copy_context()  # tests connect in another way
        Thread(target=context.run, args=(self._read,), daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        if self._watch:
            self._watch.close()

    def _read(self) -> None:
        try:
            with self._opening() as self._watch:
                with self._lock:
                    self._state.watch(self._watch.names)
                for fact in self._watch.facts():
                    if self._closed.is_set():
                        return
                    if not isinstance(fact, Tick):
                        with self._lock:
                            self._state.add(fact)
        except Exception as error:
            self.error = _as_error(error)

    def settle(self, clock: Callable[[], float] = time.monotonic, rest: Callable[[float], object] = time.sleep) -> None:
        """Wait until every node has answered, or is known not to. The error of the watch is raised."""
        deadline = clock() + FIRST_S
        while not self.settled and clock() < deadline:
            rest(LOOK_S)
        if self.error:
            raise self.error

    @property
    def settled(self) -> bool:
        with self._lock:
            return self._state.settled or self.error is not None

    def view(self) -> FleetView:
        with self._lock:
            return self._state.view()

    def silent(self) -> frozenset[str]:
        with self._lock:
            return self._state.silent()

    def tail(self, name: str, after: int = 0) -> list[TailLine]:
        with self._lock:
            return self._state.tail(name, after)


def _as_error(error: Exception) -> OrchError:
    from orchestrator.fleet.faults import as_error

    return as_error(error)
