"""Follow a run that another process records: its lines come from the store, and no second stream is opened."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.find_runs import RunningContainer, find_again
from orchestrator.specs.run import ACTIVE
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
from orchestrator.store.segments import stem_of
from orchestrator.store.tail import Tail

POLL_S, LOOK_EVERY_S, LOOK_S, REST_S = 0.1, 5.0, 15.0, 5.0
"""Seconds between two looks for lines, and between two looks at the containers; what such a look takes at most; and
what the last lines of a container may take."""
LOST_EVERY = 6
"""Looks from one to the next at a node that does not answer: no lines are shown until it has failed to."""


class StoreWatch:
    """Reads the lines of these containers as the recorder of their run writes them.

    It ends when one container has ended and no other one on a node that answers is left, when it has become the
    recorder itself, or when the recorder is silent.
    """

    def __init__(
        self,
        containers: Sequence[RunningContainer],
        record: RunRecord,
        lock: RecorderLock,
        tail: Tail,
    ) -> None:
        self._record, self._lock, self._tail = record, lock, tail
        self.left = {one.node.name: one for one in containers}
        """Containers that have not ended."""
        self._of = dict(self.left)
        self.since = {one.node.name: record.last_time(one.node.name, one.id) for one in containers}
        """Time of the last line of each."""
        self.is_silent = False
        self._lost, self._looks = set[str](), 0

    @property
    def ended(self) -> frozenset[str]:
        """Nodes whose containers have ended."""
        return frozenset(self._of.keys() - self.left.keys())

    @property
    def is_over(self) -> bool:
        """True if a container has ended, and all others have ended too or are on nodes that do not answer."""
        return bool(self.ended) and self.left.keys() <= self._lost

    def run_events(self) -> Iterator[RunEvent]:
        beat_at = look_at = time.monotonic()
        while self.left and not self._lock.is_held and not self.is_over:
            lines = self._new_lines()
            yield from lines or (Tick(),)
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_EVERY_S
                yield from self._look()
            if now >= beat_at:
                beat_at = now + BEAT_S
                if not self._lock.take() and (silent := self._lock.silent_recorder()):
                    self.is_silent = True
                    why = f"{silent}, which stores the lines, gives no sign of life: they are shown, and not stored"
                    yield LinesNotKept(reason=why)
                    return
            if not lines:
                time.sleep(POLL_S)
        yield from self._new_lines()

    def _new_lines(self) -> list[RunLine]:
        lines = self._tail.new()
        for line in lines:
            self.since[line.node] = line.time
        return lines

    def _look(self) -> Iterator[RunEvent]:
        """Ask for the containers; what they wrote before their end comes before it."""
        ended = list[ContainerExited | ContainerRemoved]()
        asked = [one for name, one in self.left.items() if name not in self._lost or not self._looks % LOST_EVERY]
        self._looks, run_id = self._looks + 1, self._record.run_id
        for outcome in fan_out(asked, lambda one: find_again(one, run_id), timeout_s=LOOK_S):
            name, rank, facts = outcome.item.node.name, outcome.item.node_rank, outcome.result
            if outcome.error:
                if name not in self._lost:
                    self._lost.add(name)
                    yield NodeLost(node=name, node_rank=rank, error=outcome.error)
                continue
            if name in self._lost or not outcome.item.id:
                self._lost.discard(name)
                yield NodeBack(node=name, node_rank=rank, container=facts.id if facts else "")
            if facts and not outcome.item.id:
                self._find(RunningContainer.of(outcome.item.node, rank, facts))
            if facts is None:
                stops = self._record.is_stopping()
                ended.append(ContainerRemoved(node=name, node_rank=rank, is_requested=stops))
            elif facts.state not in ACTIVE:
                ended.append(ContainerExited(node=name, node_rank=rank, container=facts))
            else:
                continue
            del self.left[name]
        for one in ended:
            yield from self._rest_of(one.node)
        yield from ended

    def _find(self, container: RunningContainer) -> None:
        """Read the lines of a container whose node did not answer at first."""
        name = container.node.name
        self.left[name] = self._of[name] = container
        self._tail.add(stem_of(name, container.id))

    def _rest_of(self, node: str) -> Iterator[RunLine]:
        """The last lines of a container that has ended, which the recorder may write a moment later."""
        container, until = self._of[node], time.monotonic() + REST_S
        last = fan_out([container], lambda one: list(one.node.engine.logs(one.id, tail=1)), timeout_s=LOOK_S)
        times = [line.time for line in last[0].result or ()]
        while times and self.since[node] != times[-1] and time.monotonic() < until:
            yield from self._new_lines()
            time.sleep(POLL_S)
        yield from self._new_lines()


def unstored(
    lock: RecorderLock,
    left: dict[str, RunningContainer],
    shown: dict[str, str],
    read: Generator[RunEvent, None, None],
) -> Iterator[RunEvent]:
    """Events that are read from the nodes while the recorder of their run is silent, until all containers have ended,
    or this process has become the recorder: the other one has gone.

    Kept up to date: `left`, containers that have not ended, and `shown`, time of the last line of each node.
    """
    look_at, is_silent = time.monotonic() + BEAT_S, True
    with closing(read):
        for run_event in read:
            if isinstance(run_event, RunLine):
                shown[run_event.node] = run_event.time
            elif isinstance(run_event, ContainerExited | ContainerRemoved):
                left.pop(run_event.node, None)
            yield run_event
            if time.monotonic() < look_at:
                continue
            look_at = time.monotonic() + BEAT_S
            was_silent, is_silent = is_silent, not lock.take() and bool(lock.silent_recorder())
            if was_silent and not is_silent:
                yield LinesNotKept(reason="")
            if lock.is_held:
                return
