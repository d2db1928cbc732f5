"""The events of a run's recorded lines by kind and time, in an SQLite file of the record that can be made again."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from pathlib import Path
from threading import Lock

from contract.event_lines import kind_in
from contract.events import Event, LineRedrawn
from orchestrator.fleet.runs.index_file import IndexFile, transaction
from orchestrator.fleet.runs.log_blocks import BLOCK_BYTES
from orchestrator.fleet.runs.log_files import LogFile, log_files, parse_line
from orchestrator.specs.run_events import RunLine

VERSION = 1
_MARK = b'"text": "@orch '
_TABLES = """
CREATE TABLE files(name TEXT PRIMARY KEY, inode INTEGER, upto INTEGER, segment TEXT);
CREATE TABLE events(
    kind TEXT, time TEXT, node TEXT, node_rank INTEGER, rank INTEGER, sum INTEGER, text TEXT, segment TEXT,
    UNIQUE(kind, time, node, rank, sum)
);
"""
_SELECT = """
SELECT time, node, node_rank, rank, text FROM events
WHERE kind = ? AND time > ? AND time <= ? ORDER BY time {0}, node {0}, rank {0}, sum {0}
"""
_SELECT_NEW = """
SELECT rowid, time, node, node_rank, rank, text FROM events
WHERE rowid > ? ORDER BY time, node, rank, sum
"""
_NOT_KEPT = ("", LineRedrawn.kind)
"""An ordinary line, and states of progress bars: a thousand times as many as all other events."""
_NO_RANK = -1
_INTEGERS = 2**63
_ADDING = Lock()


class EventIndex:
    """Index of the events in one folder of log files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = IndexFile(path=folder / "index.sqlite", version=VERSION, tables=_TABLES)

    @property
    def files(self) -> list[Path]:
        return self._file.all_files

    def add_new(self) -> None:
        """Add what was written since, unless another thread does so. A failure is left to the next reader."""
        if _ADDING.acquire(blocking=False):
            try:
                self._file.update(lambda database: _add_new(database, self._folder))
            finally:
                _ADDING.release()

    def events(
        self,
        kinds: Sequence[type[Event] | str],
        *,
        nodes: Collection[str] | None,
        since: str,
        until: str,
        newest_first: bool,
    ) -> Iterator[RunLine]:
        """Lines with these events in order of time; see `KeptLines.events`."""
        names, query = _names(kinds), _SELECT.format("DESC" if newest_first else "ASC")

        def rows(database: sqlite3.Connection) -> Iterator[tuple[str, str, int, int, str]]:
            _add_new(database, self._folder)
            selected = [database.execute(query, (kind, since, until or "\U0010ffff")) for kind in names]
            yield from merge(*selected, key=lambda row: row[:2], reverse=newest_first)

        for time, node, node_rank, rank, text in self._file.read(rows):
            own = None if rank == _NO_RANK else rank
            line = RunLine(time=time, node=node, node_rank=node_rank, rank=own, text=text)
            if (nodes is None or node in nodes) and line.event is not None:
                yield line


class EventCursor:
    """Reads the events in one folder of log files as they are added, each once: also those with earlier times, of a
    node whose clock was set back or whose lines were collected late."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = IndexFile(path=folder / "index.sqlite", version=VERSION, tables=_TABLES)
        self._inode = self._number = 0

    def new(self) -> Iterator[RunLine | None]:
        """Events since the last call, in order of time. A None among them: the index was made again, and all events
        follow from the first one."""

        def rows(database: sqlite3.Connection) -> Iterator[tuple[int, str, str, int, int, str] | None]:
            _add_new(database, self._folder)
            inode = self._file.inode
            if inode != self._inode or not inode:
                self._inode, self._number = inode, 0
                yield None
            yield from database.execute(_SELECT_NEW, (self._number,))

        for row in self._file.read(rows):
            if row is None:
                yield None
                continue
            number, time, node, node_rank, rank, text = row
            self._number = max(self._number, number)
            own = None if rank == _NO_RANK else rank
            line = RunLine(time=time, node=node, node_rank=node_rank, rank=own, text=text)
            if line.event is not None:
                yield line


def _add_new(database: sqlite3.Connection, folder: Path) -> None:
    """Add the events of new lines, and remove those of files that are gone."""
    files = log_files(folder)
    known = {name: (inode, upto) for name, inode, upto in database.execute("SELECT name, inode, upto FROM files")}
    for file in sorted(files, key=lambda file: file.packed):  # lines move from the plain files to the others
        with suppress(FileNotFoundError):
            state = file.path.stat()
            inode, upto = known.get(file.path.name, (0, 0))
            if (inode, upto) != (state.st_ino, state.st_size):
                same = inode == state.st_ino and upto <= state.st_size
                _add_file(database, file, state, upto if same else 0)
    segments = {_segment(file) for file in files}
    gone = [held for (held,) in database.execute("SELECT DISTINCT segment FROM files") if held not in segments]
    for segment in gone:
        with transaction(database):
            database.execute("DELETE FROM events WHERE segment = ?", (segment,))
            database.execute("DELETE FROM files WHERE segment = ?", (segment,))


def _add_file(database: sqlite3.Connection, file: LogFile, state: os.stat_result, known: int) -> None:
    """Add the events after position `known` of a file, block by block."""
    for block in file.blocks(with_times=state.st_size > 2 * BLOCK_BYTES):
        end = block.start + block.size
        if end <= known:
            continue
        content = bytes(block.load())
        if file.packed:
            end = end if end <= state.st_size else block.start  # it is cut short, or is still being written
        else:
            content = content[max(0, known - block.start) :]
            end -= len(content) - content.rfind(b"\n") - 1  # the last line may not be complete
        rows = [row for line in _event_lines(content) for row in _row(line, _segment(file))]
        with transaction(database):
            database.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", (file.path.name, state.st_ino, end, _segment(file))
            )


def _event_lines(content: bytes) -> Iterator[RunLine]:
    at = content.find(_MARK)
    while at >= 0:
        start, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at)
        end = len(content) if end < 0 else end
        if (line := parse_line(content[start:end])) and kind_in(line.text) not in _NOT_KEPT:
            yield line
        at = content.find(_MARK, end)


def _row(line: RunLine, segment: str) -> Iterator[tuple[str | int, ...]]:
    """The row of a line; none if a value of it fits no column."""
    rank = _NO_RANK if line.rank is None else line.rank
    text = line.text.encode("utf-8", "backslashreplace")
    if max(abs(line.node_rank), abs(rank)) < _INTEGERS and _is_text(line.time) and _is_text(line.node):
        kind = kind_in(line.text)
        yield kind, line.time, line.node, line.node_rank, rank, zlib.crc32(text), text.decode(), segment


def _is_text(value: str) -> bool:
    """Whether it has no lone surrogate."""
    return value == value.encode("utf-8", "replace").decode()


def _segment(file: LogFile) -> str:
    """Name of a compressed file and of the plain one after it: lines move from this to that."""
    return f"{file.stem}.{file.number}"


def _names(kinds: Sequence[type[Event] | str]) -> list[str]:
    """The kinds as they are on the lines, with those of subclasses."""
    names: dict[str, None] = {}
    for wanted in kinds:
        if isinstance(wanted, str):
            names[wanted] = None
        else:
            names.update((name, None) for name, kind in Event.kinds.items() if issubclass(kind, wanted))
    return list(names)
