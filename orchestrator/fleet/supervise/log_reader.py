"""Reads the log of one container from its node, however often the connection breaks, and stores it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.read_logs import run_line
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.specs.run import State
from orchestrator.specs.run_events import ContainerExited, LinesNotKept, RunEvent, RunLine
from orchestrator.specs.secret import Veil
from orchestrator.store.line_log import LineLog
from orchestrator.store.run_record import RunRecord

RETRY_S = 60.0
"""Seconds until a disk that was full is tried again."""
MOST_WAITING, DRAIN_S = 10_000, 0.05
"""Limit of queued events: a rank may write faster than a terminal shows."""
LOOKS, LOOK_EVERY_S = 5, 0.2
"""Checks of a container after the end of its log."""

Pause = Callable[[float], object]
"""Waits so many seconds, or until the following has ended."""


@dataclass(frozen=True)
class LineTarget:
    """Destination of the lines of several containers."""

    record: RunRecord
    queue: SimpleQueue[RunEvent]
    pause: Pause
    closed: Event
    """Set once no events are taken from the queue any more."""
    stores: bool
    """True if lines are recorded."""


class LogReader:
    """Queues and records each line of a container once, however often its connection breaks."""

    def __init__(self, container: RunningContainer, into: LineTarget, since: str) -> None:
        self.container, self.last = container, since
        self._record, self._queue, self._pause, self._closed = into.record, into.queue, into.pause, into.closed
        self._stores, self._retry_at = into.stores, float("inf")
        self.in_touch = Event()
        self.in_touch.set()

    def until_its_end(self) -> None:
        container = self.container
        veil = veil_at(container.node, container.secrets, self._record.veil)
        with ExitStack() as stack:
            log = stack.enter_context(self._open(container, veil)) if self._stores else None
            while not self._closed.is_set():
                for line in container.node.engine.logs(container.id, follow=True, since=self.last):
                    if self._closed.is_set():
                        return
                    entry = run_line(container, line, veil)
                    self.last = line.time
                    self._record.note_report(entry, container.id)  # first: a line that is stored is not read again
                    if log:
                        log = self._store(log, entry, stack, container, veil)
                    while self._queue.qsize() >= MOST_WAITING and not self._pause(DRAIN_S):
                        pass  # lines wait on the node, in its log, until those here have been read
                    self._queue.put(entry)
                if self._runs_on(container):
                    continue
                facts = container.node.engine.wait(container.id)
                if facts.state is not State.RUNNING:
                    if log:
                        self._end(log)
                    self._queue.put(
                        ContainerExited(node=container.node.name, node_rank=container.node_rank, container=facts)
                    )
                    return

    def _open(self, container: RunningContainer, veil: Veil) -> LineLog:
        """The container's lines in the store. Those before the next one that are missing, since the disk was full, are
        stored first."""
        name = container.node.name
        log = self._record.open_log(name, container.id, self.last)
        if log.has_gap:
            log.close()
            with self._record.open_log(name, container.id) as filling:
                for line in container.node.engine.logs(container.id, since=filling.since):
                    filling.add(run_line(container, line, veil))
                    if filling.is_broken or line.time == self.last:
                        break
            log = self._record.open_log(name, container.id, self.last)
        log.is_broken = log.has_gap
        self._retry_at = time.monotonic() + RETRY_S if log.has_gap else float("inf")
        return log

    def _store(
        self, log: LineLog, entry: RunLine, stack: ExitStack, container: RunningContainer, veil: Veil
    ) -> LineLog:
        log.add(entry)
        if log.problem:
            self._end(log)
            self._retry_at = time.monotonic() + RETRY_S if log.is_broken else self._retry_at
        if time.monotonic() >= self._retry_at:
            log = stack.enter_context(self._open(container, veil))
            if not log.has_gap:
                self._queue.put(LinesNotKept(reason=""))
        return log

    def _end(self, log: LineLog) -> None:
        """Report what could not be stored."""
        self._record.settle()
        if log.problem:
            self._queue.put(LinesNotKept(reason=log.problem))
            log.problem = ""

    def _runs_on(self, container: RunningContainer) -> bool:
        """Return whether the container still runs after the end of its log: a log ends a moment before the engine
        reports the end of the container, or with its connection, which raises no error."""
        for _ in range(LOOKS):
            facts = container.node.engine.container(container.id)
            if facts is None or facts.state is not State.RUNNING:
                return False
            self._pause(LOOK_EVERY_S)
        return True
