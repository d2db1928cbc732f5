"""Lines of many segments in order of time, in memory that does not grow with their number."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.specs.run_events import RunLine
from orchestrator.store.search import ANY_LINE, Needles
from orchestrator.store.segments import Segment, line_times, parse_line

_Order = tuple[str, int, str, int, int]
"""Time, node_rank, container, segment, place in it."""
_Found = tuple[_Order, RunLine]


@dataclass(frozen=True, kw_only=True)
class WantedLines:
    """Selection of the lines to read."""

    since: str = ""
    """Exclusive, in the format of the lines' times; `until` is inclusive."""
    until: str = ""
    needles: Needles = ANY_LINE
    passes: Callable[[RunLine], bool] | None = None
    at_segment: Callable[[str], object] | None = None
    """Receives the latest time of each segment before it is read; when it raises, and the newest lines come first, all
    lines after it were given."""

    def spans(self, first: str, last: str) -> bool:
        return last > self.since and (not self.until or first <= self.until)

    def has(self, line: RunLine) -> bool:
        inside = line.time > self.since and (not self.until or line.time <= self.until)
        return inside and (self.passes is None or self.passes(line))


ALL_LINES = WantedLines()


def merged(segments: Sequence[Segment], wanted: WantedLines, *, newest_first: bool) -> Iterator[RunLine]:
    """The wanted lines in order of time; those of equal time in the order of nodes and as they were written.

    A segment is read when its earliest time has come, or its latest.
    """
    waiting = []
    for number, segment in enumerate(segments):
        first, last = segment.times()
        if wanted.spans(first, last):
            same = number and segments[number - 1].stem == segment.stem
            waiting.append((last if newest_first else first, segment, segments[number - 1] if same else None))
    waiting.sort(key=lambda one: one[0], reverse=not newest_first)
    heads: list[tuple[_Order, RunLine, Iterator[_Found]]] = []
    at = -1 if newest_first else 0

    def push(lines: Iterator[_Found]) -> None:
        if head := next(lines, None):
            insort(heads, (*head, lines), key=lambda one: one[0])

    while waiting or heads:
        while waiting and (not heads or _is_due(waiting[-1][0], heads[at][0][0], newest_first)):
            time, segment, before = waiting.pop()
            if wanted.at_segment:
                wanted.at_segment(time if newest_first else segment.last)
            push(_lines(segment, before, wanted, newest_first))
        if heads:
            _, line, lines = heads.pop(at)
            yield line
            push(lines)


def _is_due(time: str, head: str, newest_first: bool) -> bool:
    return time >= head if newest_first else time <= head


def _lines(segment: Segment, before: Segment | None, wanted: WantedLines, newest_first: bool) -> Iterator[_Found]:
    """The wanted lines of a segment in order of time."""
    content = segment.content()
    if wanted.needles.excludes(content, before.content if before else lambda: b""):
        return
    picked = list(wanted.needles.lines(content))
    times = [] if wanted.needles.texts else line_times(content)
    if not times or not _ascending(times):  # few lines, or a clock was set back
        found = sorted(_parsed(picked, segment, wanted), key=lambda one: one[0])
        yield from reversed(found) if newest_first else found
        return
    begin = bisect_right(times, wanted.since.encode())
    end = bisect_right(times, wanted.until.encode()) if wanted.until else len(times)
    picked = picked[begin:end] if len(picked) == len(times) else picked
    del content, times  # one of each container would be in memory
    yield from _parsed(picked[::-1] if newest_first else picked, segment, wanted)


def _parsed(picked: Sequence[tuple[int, bytes]], segment: Segment, wanted: WantedLines) -> Iterator[_Found]:
    for place, raw in picked:
        if (line := parse_line(raw, segment.stem)) and wanted.has(line):
            yield (line.time, line.node_rank, segment.stem, segment.number, place), line


def _ascending(times: Sequence[bytes]) -> bool:
    return all(map(bytes.__le__, times, times[1:]))
