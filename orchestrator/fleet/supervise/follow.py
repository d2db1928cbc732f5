"""Follow a run: merge the lines and exits of all its nodes as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.runs.find_runs import RunningContainer, find_again
from orchestrator.fleet.supervise.log_reader import LineTarget, LogReader, Pause
from orchestrator.fleet.supervise.watch_store import StoreWatch, unstored
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import OrchError
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import (
    ContainerExited,
    ContainerRemoved,
    LinesNotKept,
    NodeBack,
    NodeLost,
    RunEvent,
    RunLine,
    Tick,
)
from orchestrator.store.recorder import BEAT_S, RecorderLock
from orchestrator.store.run_record import RunRecord
from orchestrator.store.segments import Ends

PROBE_EVERY_S, PROBE_S = 10.0, 15.0
"""Seconds. A machine without power keeps its connection open for a quarter of an hour: only a probe finds out."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
MAX_UNEXPECTED = 3
"""Unexpected exceptions of one container's reader, after which its node counts as lost."""
SETTLE_S = 0.1
"""Seconds until lines are written."""


def follow(
    containers: Sequence[RunningContainer],
    record: RunRecord,
    *,
    tick_s: float = 0.5,
    patient: bool = False,
    pause: Pause | None = None,
    ends: Ends | None = None,
) -> Iterator[RunEvent]:
    """Merge the nodes' events from these ends of the recorded lines, or from those of now, until each node has ended
    or is lost; lines are recorded, by this process or by another one, which is then the only one that reads the nodes.

    `patient`: wait for a lost node as long as another one runs. A container that Docker restarts is followed again.
    """
    with record.recorder() as lock:
        shown, left, ended = dict[str, str](), tuple(containers), frozenset[str]()
        tail, is_silent = record.tail(((one.node.name, one.id) for one in containers), ends), False
        follower = partial(Follower, record, tick_s=tick_s, patient=patient, pause=pause, from_record=True)
        if not lock.take():
            watch = StoreWatch(left, record, lock, tail)
            yield from watch.run_events()
            shown, left, ended = watch.since, tuple(watch.left.values()), watch.ended
            if watch.is_over:
                return
            if is_silent := watch.is_silent:
                yield from unstored(lock, watch.left, shown, _read(follower(lock=None), left, shown, ended))
                left, ended = tuple(watch.left.values()), watch.ended
            if not lock.is_held:
                return
        stored = {one.node.name: record.last_time(one.node.name, one.id) for one in left}
        if not is_silent:  # otherwise lines were shown before they were stored
            lines = tail.new()  # also those that others have stored before this process reads the nodes
            yield from lines
            shown = {**stored, **{line.node: line.time for line in lines}}
        ahead = {node: time for node, time in shown.items() if time != stored.get(node)}
        yield from _without(ahead, _read(follower(lock=lock), left, stored, ended))


def _read(
    following: Follower, containers: Sequence[RunningContainer], since: Mapping[str, str], ended: frozenset[str]
) -> Generator[RunEvent, None, None]:
    """Events of these containers, with their lines after these times. `ended`: nodes whose containers have ended."""
    for one in containers:
        following.add(one, since=since[one.node.name])
    yield from _until_all_ended(following, frozenset(one.node.name for one in containers), set(ended))


def _without(ahead: dict[str, str], run_events: Iterator[RunEvent]) -> Iterator[RunEvent]:
    """Leave out the lines that were shown before they were stored: of each node those up to the one of this time. All
    that follow are new, also those with earlier times, of a node whose clock was set back."""
    for run_event in run_events:
        if isinstance(run_event, RunLine) and (last := ahead.get(run_event.node)):
            if run_event.time >= last:
                del ahead[run_event.node]
            if run_event.time <= last:
                continue
        yield run_event


def _until_all_ended(following: Follower, nodes: frozenset[str], ended: set[str]) -> Iterator[RunEvent]:
    away = set[str]()
    for run_event in following.run_events():
        yield run_event
        if isinstance(run_event, NodeLost):
            away.add(run_event.node)
        elif isinstance(run_event, NodeBack):
            away.discard(run_event.node)
        elif isinstance(run_event, ContainerExited | ContainerRemoved):
            ended.add(run_event.node)
        if ended and nodes <= away | ended:
            return


class Follower:
    """Merges the events of several nodes. A lost node ends its part; a patient follower waits for it.

    `from_record`: lines on record are skipped, also of a container that is found only when its node answers again.
    `lock`: the right to record the run, taken as soon as it is free; None where a recorder that is stopped holds it,
    and lines are only shown.
    """

    def __init__(
        self,
        record: RunRecord,
        lock: RecorderLock | None,
        *,
        tick_s: float = 0.5,
        patient: bool = False,
        pause: Pause | None = None,
        from_record: bool = False,
    ) -> None:
        self._lock = lock
        self._record, self._tick_s, self._patient, self._from_record = record, tick_s, patient, from_record
        self._queue: SimpleQueue[RunEvent] = SimpleQueue()
        self._closed, self._turn = Event(), Lock()
        self._pause = pause or self._closed.wait
        self._open_ends = 0
        self._is_recording = False

    def add(self, container: RunningContainer, *, since: str = "") -> None:
        """Follow this container too, or again; its lines after `since`."""
        self._open_ends += 1
        if self._lock and not self._is_recording:
            self._is_recording = True
            self._lock.take()
            Thread(target=self._beat, args=(self._lock,), daemon=True).start()
        Thread(target=self._listen, args=(container, since), daemon=True).start()

    def look_out(self, node: Node, ready: Callable[[], object], *, after_s: float = 0.0) -> None:
        """`NodeBack` once `ready` raises no error: for a node that has no part in the attempt."""

        def wait() -> None:
            self._pause(after_s)
            if self._until(node, ready):
                self._queue.put(NodeBack(node=node.name))

        Thread(target=wait, daemon=True).start()

    def run_events(self) -> Iterator[RunEvent]:
        """Events as they come, a `Tick` after each `tick_s` without one, until no container is followed."""
        unkept = set[str]()
        try:
            while self._open_ends:
                try:
                    run_event = self._queue.get(timeout=self._tick_s)
                except Empty:
                    yield Tick()
                    continue
                if isinstance(run_event, LinesNotKept) and not run_event.reason:
                    unkept.clear()
                elif isinstance(run_event, LinesNotKept):
                    if run_event.reason in unkept:
                        continue
                    unkept.add(run_event.reason)
                if isinstance(run_event, ContainerExited | ContainerRemoved) or (
                    isinstance(run_event, NodeLost) and not self._patient
                ):
                    self._open_ends -= 1
                yield run_event
        finally:
            self.close()

    def close(self) -> None:
        """End the following, and all waiting for nodes."""
        self._closed.set()
        self._record.settle()
        with self._turn:
            if self._lock:
                self._lock.release()

    def _beat(self, lock: RecorderLock) -> None:
        """Write what has come, ten times a second, and give signs of life as the recorder of the run."""
        beat_at = time.monotonic()
        while not self._closed.wait(SETTLE_S):
            if time.monotonic() >= beat_at:  # before lines are written, which may wait for other processes
                beat_at = time.monotonic() + BEAT_S
                with self._turn:  # a lock that is taken after the end would be held by no one
                    if not self._closed.is_set() and lock.take():
                        lock.beat()
            self._record.settle()

    def _listen(self, container: RunningContainer, since: str) -> None:
        ended = Event()
        try:
            into = LineTarget(self._record, self._queue, self._pause, self._closed, self._lock is not None)
            reader = LogReader(container, into, since)
            if self._patient:
                Thread(target=self._probe, args=(container.node, reader, ended), daemon=True).start()
            self._read_to_end(container, reader)
        except BaseException as error:  # no other thread would notice the end of this one
            name = container.node.name
            self._queue.put(NodeLost(node=name, node_rank=container.node_rank, error=as_error(error, node=name)))
        finally:
            ended.set()

    def _read_to_end(self, container: RunningContainer, reader: LogReader) -> None:
        """Read again whenever the connection breaks; a few unexpected exceptions are tolerated."""
        unexpected = 0
        while not self._closed.is_set():
            try:
                reader.until_its_end()
                return
            except Exception as error:
                unexpected += not isinstance(error, OrchError)
                if unexpected > MAX_UNEXPECTED:
                    raise
                if not self._wait_for(container, reader, as_error(error, node=container.node.name)):
                    return

    def _wait_for(self, container: RunningContainer, reader: LogReader, error: OrchError) -> bool:
        """Wait for the node; whether its container can be followed again."""
        name, rank = container.node.name, container.node_rank
        if not self._patient:
            self._queue.put(NodeLost(node=name, node_rank=rank, error=error))
            return False
        held: list[ContainerFacts | None] = []

        def look() -> None:
            held.append(find_again(reader.container, self._record.run_id))

        try:
            look()
        except OrchError as silence:
            reader.in_touch.clear()
            self._queue.put(NodeLost(node=name, node_rank=rank, error=silence))
            if not self._until(container.node, look):
                return False
            reader.in_touch.set()
            self._queue.put(NodeBack(node=name, node_rank=rank, container=held[-1].id if held[-1] else ""))
        else:
            self._pause(FIRST_PAUSE_S)  # an engine that breaks off repeatedly is not asked without a pause
        if (facts := held[-1]) is None:
            stops = self._record.is_stopping()
            self._queue.put(ContainerRemoved(node=name, node_rank=rank, is_requested=stops))
        elif not reader.container.id:
            reader.container = RunningContainer.of(container.node, rank, facts)
            reader.last = self._record.last_time(name, facts.id) if self._from_record else reader.last
        return facts is not None

    def _until(self, node: Node, ready: Callable[[], object]) -> bool:
        """Try until `ready` succeeds, each time over a new connection; False: the following has ended."""
        pause = FIRST_PAUSE_S
        while not self._closed.is_set():
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            with suppress(Exception):  # whatever it was: it is not there yet
                node.close()
                ready()
                return not self._closed.is_set()
        return False

    def _probe(self, node: Node, reader: LogReader, ended: Event) -> None:
        """Close a connection that does not answer, so that its reader notices."""
        while not (ended.is_set() or self._closed.is_set()):
            self._pause(PROBE_EVERY_S)
            if reader.in_touch.is_set() and not ended.is_set():
                asked = fan_out([node], lambda node: node.run(["true"], timeout_s=PROBE_S), timeout_s=PROBE_S)
                if asked[0].error and not self._closed.is_set():
                    with suppress(Exception):  # it is broken anyhow
                        node.close()
