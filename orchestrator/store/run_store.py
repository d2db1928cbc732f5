"""The log lines of a run on this computer, and the events among them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from contract.events import Event
from orchestrator.specs.run_events import RunLine
from orchestrator.store.event_file import EventFile
from orchestrator.store.events import EventCursor, EventReader, EventWriter
from orchestrator.store.line_log import LOOK_S, LineLog, end_of, locked, open_log, settle
from orchestrator.store.read_lines import ALL_LINES, WantedLines, merged
from orchestrator.store.search import ANY_LINE
from orchestrator.store.segments import (
    FOLDER,
    Ends,
    Segment,
    ends_of,
    parse_line,
    raw_lines_backwards,
    segments_in,
    stem_of,
    within,
)
from orchestrator.store.tail import Tail

READER_WAIT_S = 1.0
"""Seconds for the lock of the lines, which a writer holds for milliseconds."""


class RunStore:
    """Lines and events of one run. Invalid lines, such as truncated ones, are left out.

    Arguments of its methods: `since` is exclusive and `until` inclusive, both in the format of the lines' times.
    """

    def __init__(self, folder: Path, *, ends: Ends | None = None) -> None:
        """`ends`: where the lines end for the methods that give lines; None: all that are stored."""
        self.folder, self._ends = folder, ends

    def open_log(self, node: str, container: str = "", since: str | None = None) -> LineLog:
        """Open the log of this container of a node for appending. `since`: time of the line after which the lines will
        come; those of them that are stored meanwhile are passed over. None: after the last one stored."""
        return open_log(self.folder, node, container, since)

    def settle(self) -> None:
        """Write what waits in this process."""
        settle(self.folder)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes with recorded lines."""
        return tuple(sorted({one.node for one in self._segments() if one.packed or one.size}))

    def lines(
        self, node: str | Collection[str] | None = None, wanted: WantedLines = ALL_LINES, *, newest_first: bool = False
    ) -> Iterator[RunLine]:
        """The wanted lines of a node, of several or of all, in order of time."""
        return merged(self._segments(node), wanted, newest_first=newest_first)

    def newest(self, node: str, container: str = "", wanted: WantedLines = ALL_LINES) -> Iterator[RunLine]:
        """Lines of one node, or of one of its containers, the last written first; some that are not wanted may be among
        them."""
        segments = [one for one in self._segments(node) if not container or one.stem == stem_of(node, container)]
        for number, segment in reversed(list(enumerate(segments))):
            if not wanted.spans(segment.first, segment.last):
                continue
            content, needles = segment.content(), wanted.needles
            if needles is ANY_LINE:
                yield from filter(None, (parse_line(raw, segment.stem) for raw in raw_lines_backwards(content)))
            elif not needles.excludes(content, segments[number - 1].content if number else lambda: b""):
                found = reversed(list(needles.lines(content)))
                yield from filter(None, (parse_line(raw, segment.stem) for _, raw in found))

    def count_lines(self) -> int:
        return sum(segment.content().count(b"\n") for segment in self._segments())

    def last_time(self, node: str, container: str = "") -> str:
        """Time of the last recorded line of this container; empty if there is none."""
        self.settle()
        return end_of(segments_in(self.folder / FOLDER, stem_of(node, container)))[1]

    def ends(self) -> Ends:
        """Return where the lines of each container end now."""
        return ends_of(self._segments())

    def as_of(self, ends: Ends) -> RunStore:
        """The lines as they were when they ended there."""
        return RunStore(self.folder, ends=ends)

    def tail(self, containers: Iterable[tuple[str, str]], ends: Ends | None = None) -> Tail:
        """Lines of these containers, each a node and an id, that come after these ends, or from now on."""
        self.settle()
        return Tail(self.folder / FOLDER, [stem_of(node, container) for node, container in containers], ends)

    def events(
        self,
        *kinds: type[Event] | str,
        nodes: Collection[str] | None = None,
        containers: Mapping[str, str] | None = None,
        since: str = "",
        until: str = "",
        newest_first: bool = False,
    ) -> Iterator[RunLine]:
        """Lines with an event of one of these kinds, subclasses included, in order of time; `event` of each is not
        None. Their number counts, not that of all lines. `containers`: the only ones, by node."""
        of = None if containers is None else {stem_of(node, container) for node, container in containers.items()}
        if reader := self._reader():
            yield from reader.events(kinds, nodes=nodes, stems=of, since=since, until=until, newest_first=newest_first)

    def new_events(self, cursor: EventCursor) -> Iterator[RunLine | None]:
        """Events after the cursor, which is moved, each once, in order of time; also those with earlier times, of a
        node whose clock was set back. A None among them: all events follow from the first one."""
        if reader := self._reader():
            yield from reader.new(cursor)

    def _reader(self) -> EventReader | None:
        """The events, after those of lines that a process has written before its end were added; None: no lines."""
        self.settle()
        file, lines = EventFile(self.folder), self.folder / FOLDER
        if not lines.is_dir():
            return None
        reader = EventReader(file, lines)
        if reader.is_behind():
            self._catch_up(EventWriter(file, lines))
        return reader

    def _catch_up(self, writer: EventWriter) -> None:
        """Add the events that are missing, piece by piece: a recorder writes its lines in between."""
        with suppress(OSError), closing(writer):  # whoever holds the lock for longer adds them
            is_behind = True
            while is_behind:
                with locked(self.folder, wait_s=READER_WAIT_S):
                    is_behind = writer.add()
                if is_behind:
                    time.sleep(2 * LOOK_S)

    def _segments(self, node: str | Collection[str] | None = None) -> list[Segment]:
        """Segments of a node, of several or of all, container by container in the order begun, each in the order
        written."""
        self.settle()
        nodes = (node,) if isinstance(node, str) else node
        found = [one for one in segments_in(self.folder / FOLDER) if nodes is None or one.node in nodes]
        found = found if self._ends is None else within(found, self._ends)
        begun: dict[str, str] = {}
        for one in found:
            if one.stem not in begun:
                begun[one.stem] = one.begins_at()
        return sorted(found, key=lambda one: begun[one.stem])
