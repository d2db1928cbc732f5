"""The events of a run by number, kind and time, copied from its segments to an SQLite file.

The file may be missing, damaged or of another version, and SQLite may not work at all in this folder: no error of it
leaves this module. Events are then read from the segments.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice
from pathlib import Path

from contract.event_lines import kind_in
from contract.events import Event, LineRedrawn, ResourcesSampled, StepDone
from contract.log_lines import EVENT_MARK
from orchestrator.specs.run_events import RunLine
from orchestrator.store.event_file import EventFile, is_damage, transaction
from orchestrator.store.read_lines import WantedLines, merged
from orchestrator.store.search import Needles
from orchestrator.store.segments import LATEST, parse_line, segments_in

RETRY_S = 10.0
"""Seconds until a file that cannot be used is tried again."""
MOST_STEPS, LOOK_EVERY = 500_000, 20_000
"""Rows with steps beyond which every second one of the older half is removed; and new rows between two looks."""
RESOURCES_FOR = timedelta(days=7)
"""Age from which one sample of resources a minute stays."""
MOST_BYTES = 1024 * 1024
"""Lines that one call reads to add events that are missing: it takes some hundredths of a second."""
_MARK = b'"text": "' + EVENT_MARK.encode()
_EVENT_LINES = Needles(texts=(_MARK,))
_NOT_STORED = ("", LineRedrawn.kind)
"""An ordinary line, and states of progress bars: a thousand times as many as all other events."""
_ROW = "time, node_rank, container, pos, node, rank, body"
_BY_KIND = f"SELECT {_ROW} FROM events WHERE kind = ? AND time > ? AND time <= ? ORDER BY {{}}"  # noqa: S608  # constants
_AFTER = f"SELECT {_ROW}, id FROM events WHERE id > ? ORDER BY time, node_rank, container, pos"  # noqa: S608  # constants
_ORDER = ("time", "node_rank", "container", "pos")
_INSERT = (
    "INSERT OR IGNORE INTO events(time, node_rank, container, pos, node, rank, kind, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_THIN_STEPS = (
    "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS number FROM events"
    " WHERE kind = ?) WHERE number % 2 = 0 AND number <= ?)"
)
_THIN_RESOURCES = (
    "DELETE FROM events WHERE kind = :kind AND time < :until AND id NOT IN (SELECT min(id) FROM events"
    " WHERE kind = :kind AND time < :until GROUP BY node, substr(time, 1, 16))"
)
_INTEGERS = 2**63
Piece = tuple[int, int, bytes]
"""Lines that were written: number of the segment, position of the first one in it, and the lines."""


class EventWriter:
    """Adds the events of lines that were written. Its user holds the lock of the run's lines."""

    def __init__(self, file: EventFile, lines: Path) -> None:
        self._file, self._lines = file, lines
        self._database: sqlite3.Connection | None = None
        self._inode, self._retry_at, self._new = 0, 0.0, 0
        self._stored: dict[str, int] = {}
        self._is_behind = self._is_removed = False
        self.full: dict[str, int] = {}
        """End of the newest full segment of a container: the next line is the first one of the next segment."""

    def add(self, pieces: Mapping[str, Sequence[Piece]] | None = None) -> bool:
        """Add the events of these pieces of each container, and those of earlier lines that are missing, of at most
        `MOST_BYTES` of them: others wait for the lock. Return whether another call adds more."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            fresh = self._database is None or self._inode != self._file.inode
            database = self._open() if fresh or self._database is None else self._database
            with transaction(database):
                self._stored = dict(database.execute("SELECT container, pos FROM stored"))
                complete = [self._add(database, stem, of_stem) for stem, of_stem in (pieces or {}).items()]
                self._is_behind = (fresh or self._is_behind or not all(complete)) and self._catch_up(database)
            if fresh or self._new >= LOOK_EVERY:
                self._new = 0
                _thin(database)
            self._is_removed = False
        except (sqlite3.Error, OSError) as error:
            self.close()
            if is_damage(error) and not self._is_removed:
                self._file.remove()
                self._is_removed = True
                return True
            self._retry_at = time.monotonic() + RETRY_S
        return self._is_behind

    def close(self) -> None:
        if self._database:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    def _open(self) -> sqlite3.Connection:
        self.close()
        self._database = database = self._file.open()
        self._inode = self._file.inode
        return database

    def _add(self, database: sqlite3.Connection, stem: str, pieces: Sequence[Piece]) -> bool:
        """Add these pieces; whether no earlier line is missing."""
        for number, offset, content in pieces:
            known, at = self._stored.get(stem, position(1, 0)), position(number, offset)
            if known == self.full.get(stem):
                known = position((known >> 32) + 1, 0)
            if known > at:  # a crash took the lines away again
                database.execute("DELETE FROM events WHERE container = ? AND pos >= ?", (stem, at))
            if known < at:
                return False
            self._insert(database, stem, number, offset, content)
        return True

    def _catch_up(self, database: sqlite3.Connection) -> bool:
        """Add events of lines that are missing; whether more may be."""
        added = 0
        for segment in segments_in(self._lines):
            known = self._stored.get(segment.stem, position(1, 0))
            number, offset = known >> 32, known & 0xFFFFFFFF
            if segment.number > number:
                offset = 0
            elif segment.number < number or (not segment.packed and 0 < segment.size <= offset):
                continue
            if added >= MOST_BYTES:
                return True
            content = segment.content()[offset:]
            if content or segment.number > number:
                self._insert(database, segment.stem, segment.number, offset, content)
                added += len(content)
        return False

    def _insert(self, database: sqlite3.Connection, stem: str, number: int, offset: int, content: bytes) -> None:
        rows = list(_rows(content, stem, position(number, offset)))
        database.executemany(_INSERT, rows)
        self._new += len(rows)
        self._stored[stem] = position(number, offset + len(content))
        database.execute("INSERT OR REPLACE INTO stored VALUES (?, ?)", (stem, self._stored[stem]))


@dataclass
class EventCursor:
    """Position up to which the events of a run were read."""

    inode: int = 0
    number: int = 0


class EventReader:
    """Reads the events of one run."""

    def __init__(self, file: EventFile, lines: Path) -> None:
        self._file, self._lines = file, lines

    def is_behind(self) -> bool:
        """Return whether lines were written whose events are missing: the writer ended, or the file is gone or
        damaged."""
        try:
            with closing(self._file.open()) as database:
                stored = dict(database.execute("SELECT container, pos FROM stored"))
        except (sqlite3.Error, OSError) as error:
            return is_damage(error)
        newest = {one.stem: one for one in segments_in(self._lines) if one.packed or one.size}
        ends = {stem: position(one.number, one.text_size) for stem, one in newest.items()}
        return any(end > stored.get(stem, position(1, 0)) for stem, end in ends.items())

    def events(
        self,
        kinds: Sequence[type[Event] | str],
        *,
        nodes: Collection[str] | None = None,
        stems: Collection[str] | None = None,
        since: str = "",
        until: str = "",
        newest_first: bool = False,
    ) -> Iterator[RunLine]:
        """Lines with an event of one of these kinds, subclasses included, in order of time. `stems`: of these
        containers alone."""
        names, given = _names(kinds), 0
        query = _BY_KIND.format(", ".join(f"{name} {'DESC' if newest_first else 'ASC'}" for name in _ORDER))
        try:
            with closing(self._file.open()) as database:
                selected = [database.execute(query, (kind, since, until or LATEST)) for kind in names]
                for row in merge(*selected, key=lambda row: row[:4], reverse=newest_first):
                    if stems is not None and row[2] not in stems:
                        continue
                    given += 1
                    if (nodes is None or row[4] in nodes) and (line := _line(row)).event is not None:
                        yield line
                return
        except (sqlite3.Error, OSError):
            pass
        wanted = WantedLines(
            since=since, until=until, needles=_EVENT_LINES, passes=lambda line: kind_in(line.text) in names
        )
        segments = [one for one in segments_in(self._lines) if stems is None or one.stem in stems]
        for line in islice(merged(segments, wanted, newest_first=newest_first), given, None):
            if (nodes is None or line.node in nodes) and line.event is not None:
                yield line

    def new(self, cursor: EventCursor) -> Iterator[RunLine | None]:
        """Events after the cursor, which is moved; see `RunStore.new_events`."""
        try:
            with closing(self._file.open()) as database:
                if (inode := self._file.inode) != cursor.inode:
                    cursor.inode, cursor.number = inode, 0
                    yield None
                for row in database.execute(_AFTER, (cursor.number,)):
                    cursor.number = max(cursor.number, row[7])
                    yield _line(row)
        except (sqlite3.Error, OSError):
            cursor.inode = 0
            yield None
            wanted = WantedLines(needles=_EVENT_LINES, passes=lambda line: kind_in(line.text) not in _NOT_STORED)
            yield from merged(segments_in(self._lines), wanted, newest_first=False)


def position(number: int, offset: int) -> int:
    """Position of a line: number of its segment, and of its first byte there."""
    return number << 32 | offset


def _thin(database: sqlite3.Connection) -> None:
    (steps,) = database.execute("SELECT count(*) FROM events WHERE kind = ?", (StepDone.kind,)).fetchone()
    until = (datetime.now(UTC) - RESOURCES_FOR).strftime("%Y-%m-%dT%H:%M:%S")
    with transaction(database):
        if steps > MOST_STEPS:
            database.execute(_THIN_STEPS, (StepDone.kind, steps // 2))
        database.execute(_THIN_RESOURCES, {"kind": ResourcesSampled.kind, "until": until})


def _rows(content: bytes, stem: str, at: int) -> Iterator[tuple[str | int | None, ...]]:
    """A row for each event in these lines; none if a value of it fits no column."""
    found = content.find(_MARK)
    while found >= 0:
        start, end = content.rfind(b"\n", 0, found) + 1, content.find(b"\n", found)
        end = len(content) if end < 0 else end
        if (line := parse_line(content[start:end])) and (kind := kind_in(line.text)) not in _NOT_STORED:
            body = line.text.removeprefix(EVENT_MARK).encode("utf-8", "backslashreplace").decode()
            if max(abs(line.node_rank), abs(line.rank or 0)) < _INTEGERS and _is_text(line.time + line.node):
                yield line.time, line.node_rank, stem, at + start, line.node, line.rank, kind, body
        found = content.find(_MARK, end)


def _line(row: tuple[str, int, str, int, str, int | None, str]) -> RunLine:
    time_of_line, node_rank, stem, _, node, rank, body = row[:7]
    text, container = EVENT_MARK + body, stem.partition("@")[2]
    return RunLine(time=time_of_line, node=node, node_rank=node_rank, rank=rank, text=text, container=container)


def _is_text(value: str) -> bool:
    """Return whether it has no lone surrogate."""
    return value == value.encode("utf-8", "replace").decode()


def _names(kinds: Sequence[type[Event] | str]) -> list[str]:
    """The kinds as they are on the lines, with those of subclasses."""
    names: dict[str, None] = {}
    for wanted in kinds:
        if isinstance(wanted, str):
            names[wanted] = None
        else:
            names.update((name, None) for name, kind in Event.kinds.items() if issubclass(kind, wanted))
    return list(names)
