"""Search the lines and outcomes of all runs on record, newest first, without the nodes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count

from contract.log_lines import EVENT_MARK
from orchestrator.specs.past_run import SearchResult
from orchestrator.specs.run_events import RunLine
from orchestrator.store.read_lines import WantedLines
from orchestrator.store.run_record import RunRecord
from orchestrator.store.search import words as words_of

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Format of the times of log lines, which compare as texts."""


def search_runs(
    records: Sequence[RunRecord],
    words: Sequence[str],
    *,
    nodes: Collection[str] | None = None,
    since: str = "",
    until: str = "",
    at_segment: Callable[[str], object] | None = None,
) -> Iterator[SearchResult]:
    """Lines that contain all the words, in any case and order, also as parts of words; events, which people do not
    see, are left out. State and reason of a run's end count as a line.

    A record is read when its newest time has come, and in it only the segments that have the words. `at_segment`: see
    `WantedLines`.
    """
    wanted = [word.lower() for word in words]
    times = sorted(((_utc(record.touched_at()), record.run_id, record) for record in records), key=lambda one: one[:2])
    number = count()
    heap: list[tuple[_Descending, int, SearchResult, Iterator[SearchResult]]] = []

    def push(results: Iterator[SearchResult]) -> None:
        if (result := next(results, None)) is not None:
            heapq.heappush(heap, (_Descending(result.time), next(number), result, results))

    while times or heap:
        while times and (not heap or times[-1][0] >= heap[0][2].time):
            record = times.pop()[2]
            push(_in_record(record, wanted, nodes, (since, until), at_segment))
            if nodes is None:
                push(_outcome(record, wanted, since, until))
        if heap:
            _, _, result, results = heapq.heappop(heap)
            yield result
            push(results)


class _Descending(str):
    """A time of which the latest is the first in order."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


def _in_record(
    record: RunRecord,
    wanted: Sequence[str],
    nodes: Collection[str] | None,
    between: tuple[str, str],
    at_segment: Callable[[str], object] | None,
) -> Iterator[SearchResult]:
    def passes(line: RunLine) -> bool:
        return not line.text.startswith(EVENT_MARK) and _has(line.text, wanted)

    (since, until), needles = between, words_of(wanted)
    stored = WantedLines(since=since, until=until, needles=needles, passes=passes, at_segment=at_segment)
    lines = record.lines(nodes, stored, newest_first=True)
    for line in lines:
        yield SearchResult(
            run_id=record.run_id,
            time=line.time,
            node=line.node,
            node_rank=line.node_rank,
            rank=line.rank,
            text=line.text,
        )


def _outcome(record: RunRecord, wanted: Sequence[str], since: str, until: str) -> Iterator[SearchResult]:
    state, reason = record.outcome() or ("", "")
    time = _utc(record.ended_at())
    if state and _has(f"{state}: {reason}", wanted) and time > since and (not until or time <= until):
        text = f"{state}: {reason}" if reason else state
        yield SearchResult(run_id=record.run_id, time=time, node="", node_rank=None, rank=None, text=text)


def _has(text: str, wanted: Sequence[str]) -> bool:
    lowered = text.lower()
    return all(word in lowered for word in wanted)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME_FORMAT)
