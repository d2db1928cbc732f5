"""Follow a run: merge the lines and exits of all its nodes as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event, Thread

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.read_logs import run_line
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.errors import OrchError
from orchestrator.specs.labels import understood
from orchestrator.specs.run import State
from orchestrator.specs.run_events import (
    ContainerExited,
    ContainerRemoved,
    LinesNotKept,
    NodeBack,
    NodeLost,
    RunEvent,
    Tick,
)

PROBE_EVERY_S, PROBE_S = 10.0, 15.0
"""Seconds. A machine without power keeps its connection open for a quarter of an hour: only a probe finds out."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
MAX_UNEXPECTED = 3
"""Unexpected exceptions of one container's reader, after which its node counts as lost."""
MOST_WAITING, DRAIN_S = 10_000, 0.05
"""Limit of queued events: a rank may write faster than a terminal shows."""
LOOKS, LOOK_EVERY_S = 5, 0.2
"""Checks of a container after the end of its log."""

Pause = Callable[[float], object]
"""Waits so many seconds, or until the following has ended."""


def follow(
    containers: Sequence[RunningContainer],
    record: RunRecord,
    *,
    tick_s: float = 0.5,
    patient: bool = False,
    pause: Pause | None = None,
) -> Iterator[RunEvent]:
    """Merge the nodes' events from the end of the record until each node has ended or is lost; lines are recorded.

    `patient`: wait for a lost node as long as another one runs. A container that Docker restarts is followed again.
    """
    following = Follower(record, tick_s=tick_s, patient=patient, pause=pause, from_record=True)
    for container in containers:
        following.add(container, since=record.last_time(container.node.name, container.id))
    away, ended = set[str](), set[str]()
    for run_event in following.run_events():
        yield run_event
        if isinstance(run_event, NodeLost):
            away.add(run_event.node)
        elif isinstance(run_event, NodeBack):
            away.discard(run_event.node)
        elif isinstance(run_event, ContainerExited | ContainerRemoved):
            ended.add(run_event.node)
        if ended and {one.node.name for one in containers} <= away | ended:
            return


class Follower:
    """Merges the events of several nodes. A lost node ends its part; a patient follower waits for it.

    `from_record`: lines on record are skipped, also of a container that is found only when its node answers again.
    """

    def __init__(
        self,
        record: RunRecord,
        *,
        tick_s: float = 0.5,
        patient: bool = False,
        pause: Pause | None = None,
        from_record: bool = False,
    ) -> None:
        self._record, self._tick_s, self._patient, self._from_record = record, tick_s, patient, from_record
        self._queue: SimpleQueue[RunEvent] = SimpleQueue()
        self._closed = Event()
        self._pause = pause or self._closed.wait
        self._open_ends = 0

    def add(self, container: RunningContainer, *, since: str = "") -> None:
        """Follow this container too, or again; its lines after `since`."""
        self._open_ends += 1
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
                if isinstance(run_event, LinesNotKept):
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

    def _listen(self, container: RunningContainer, since: str) -> None:
        ended = Event()
        try:
            reader = _LogReader(container, self._record, self._queue, since, self._pause)
            if self._patient:
                Thread(target=self._probe, args=(container.node, reader, ended), daemon=True).start()
            self._read_to_end(container, reader)
        except BaseException as error:  # no other thread would notice the end of this one
            name = container.node.name
            self._queue.put(NodeLost(node=name, node_rank=container.node_rank, error=as_error(error, node=name)))
        finally:
            ended.set()

    def _read_to_end(self, container: RunningContainer, reader: _LogReader) -> None:
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

    def _wait_for(self, container: RunningContainer, reader: _LogReader, error: OrchError) -> bool:
        """Wait for the node; whether its container can be followed again."""
        name, rank = container.node.name, container.node_rank
        if not self._patient:
            self._queue.put(NodeLost(node=name, node_rank=rank, error=error))
            return False
        held: list[str] = []

        def look() -> None:
            held.append(self._find(container))

        try:
            look()
        except OrchError as silence:
            reader.in_touch.clear()
            self._queue.put(NodeLost(node=name, node_rank=rank, error=silence))
            if not self._until(container.node, look):
                return False
            reader.in_touch.set()
            self._queue.put(NodeBack(node=name, node_rank=rank, container=held[-1]))
        else:
            self._pause(FIRST_PAUSE_S)  # an engine that breaks off repeatedly is not asked without a pause
        if self._from_record and not reader.container:
            reader.last = self._record.last_time(name, held[-1])
        reader.container = held[-1]
        if not held[-1]:
            self._queue.put(ContainerRemoved(node=name, node_rank=rank))
        return bool(held[-1])

    def _find(self, container: RunningContainer) -> str:
        """Id of the container; empty if the node has none. Found by its labels if the node never answered before."""
        if container.id:
            return container.id if container.node.engine.container(container.id) else ""
        rank = {labels.LABEL_RUN: self._record.run_id, labels.LABEL_NODE_RANK: str(container.node_rank)}
        shown = [(understood(facts.labels), facts.id) for facts in container.node.engine.containers(rank)]
        found = [(says.attempt, id) for says, id in shown if says]
        return max(found)[1] if found else ""

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

    def _probe(self, node: Node, reader: _LogReader, ended: Event) -> None:
        """Close a connection that does not answer, so that its reader notices."""
        while not (ended.is_set() or self._closed.is_set()):
            self._pause(PROBE_EVERY_S)
            if reader.in_touch.is_set() and not ended.is_set():
                asked = fan_out([node], lambda node: node.run(["true"], timeout_s=PROBE_S), timeout_s=PROBE_S)
                if asked[0].error and not self._closed.is_set():
                    with suppress(Exception):  # it is broken anyhow
                        node.close()


class _LogReader:
    """Queues and records each line of a container once, however often its connection breaks."""

    def __init__(
        self, container: RunningContainer, record: RunRecord, queue: SimpleQueue[RunEvent], since: str, pause: Pause
    ) -> None:
        self._container, self._record, self._queue, self.last, self._pause = container, record, queue, since, pause
        self.container = container.id
        self.in_touch = Event()
        self.in_touch.set()

    def until_its_end(self) -> None:
        container = replace(self._container, id=self.container)
        with self._record.open_log(container.node.name, container.id) as kept:
            known = self._record.last_time(container.node.name, container.id)  # lines up to it are kept already
            known = "" if known == self.last else known
            veil = veil_at(container.node, container.secrets, self._record.veil)
            while True:
                for line in container.node.engine.logs(container.id, follow=True, since=self.last):
                    entry = run_line(container, line, veil)
                    known = "" if line.time > known else known
                    self._record.note_checkpoint(entry, container.id)
                    if not known:
                        kept.keep(entry)
                    known = "" if line.time == known else known
                    self.last = line.time
                    while self._queue.qsize() >= MOST_WAITING and not self._pause(DRAIN_S):
                        pass  # lines wait on the node, in its log, until those here have been read
                    self._queue.put(entry)
                    if kept.problem:
                        self._queue.put(LinesNotKept(reason=kept.problem))
                        kept.problem = ""
                if self._runs_on(container):
                    continue
                facts = container.node.engine.wait(container.id)
                if facts.state is not State.RUNNING:
                    self._queue.put(
                        ContainerExited(node=container.node.name, node_rank=container.node_rank, container=facts)
                    )
                    return

    def _runs_on(self, container: RunningContainer) -> bool:
        """Whether the container still runs after the end of its log: a log ends a moment before the engine reports the
        end of the container, or with its connection, which raises no error."""
        for _ in range(LOOKS):
            facts = container.node.engine.container(container.id)
            if facts is None or facts.state is not State.RUNNING:
                return False
            self._pause(LOOK_EVERY_S)
        return True
