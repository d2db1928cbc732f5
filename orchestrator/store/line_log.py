"""Writes the log lines of a run: each line once, whichever streams and processes bring it.

A batch of lines is written under a lock of the run, so the end of each container's lines is known while it is. A stream
whose last line is not that end has been overtaken: the lines that others have written since then are those that come
next in this stream, and they are passed over.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import chain
from pathlib import Path
from threading import Lock, RLock

from orchestrator.nodes.state_files import private_folder
from orchestrator.specs.run_events import RunLine
from orchestrator.store.event_file import EventFile
from orchestrator.store.events import EventWriter, Piece, position
from orchestrator.store.segments import (
    FOLDER,
    SEGMENT_BYTES,
    Segment,
    as_json,
    pack,
    parse_line,
    raw_lines_backwards,
    segments_in,
    stem_of,
    times_of,
)

MOST_WAITING = 5000
"""Lines that wait to be written: whoever follows a run writes them ten times a second, in one thread, since glibc keeps
some MiB for each that has done it."""
STORED_BYTES = 256 * 1024 * 1024
"""Compressed bytes of a container that stay, the newest; its first segment stays, too: the beginning and the end of a
log are what explains a failure."""
LOCK = "lines.lock"
WAIT_S, LOOK_S = 5.0, 0.005
"""Seconds for the lock, which is held for milliseconds: a process that is stopped meanwhile keeps it."""
_PACKER = ThreadPoolExecutor(max_workers=1)
"""Compresses for all containers: glibc keeps some MiB for each thread that has done it, 40 MiB for 50 nodes."""
_open: dict[Path, RunWriter] = {}
_opening = Lock()


class LineLog:
    """Takes the lines of one container as one stream gives them. Never raises: after a failed write, `problem` gives
    the reason and nothing more is written, so that the next stream resumes after the last line stored."""

    def __init__(self, writer: RunWriter, stem: str, since: str | None) -> None:
        """`since`: time of the line after which the stream begins; None: after the last one stored."""
        self.problem = ""
        self.stem, self.is_broken = stem, False
        self._writer = writer
        self.at, self.since, self.has_gap = writer.place(stem, since)
        """Position of this stream in the container's lines; the time after which it is to begin; and whether lines
        between those stored and that time are missing."""
        self.ahead: Iterator[bytes] | None = None
        """Times of the lines that others have written from there on."""

    def add(self, line: RunLine) -> None:
        if not self.is_broken:
            self._writer.add(self, line)

    def close(self) -> None:
        self._writer.leave(self)

    def __enter__(self) -> LineLog:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()


class RunWriter:
    """Writes the lines of one run for all streams of this process."""

    def __init__(self, folder: Path) -> None:
        self.users = 0
        self._folder, self._lines = folder, folder / FOLDER
        self._lock = RLock()
        self._waiting: list[tuple[LineLog, RunLine]] = []
        self._tails: dict[str, _Tail] = {}
        self._events = EventWriter(EventFile(folder), self._lines)
        self._packing: Future[None] | None = None
        self._dropped = set[str]()

    def place(self, stem: str, since: str | None) -> tuple[int, str, bool]:
        """Position after the line of this time, or at the end; the time there; whether there is no such line."""
        with self._lock:
            self.flush()
            segments = segments_in(self._lines, stem)
            end, last = end_of(segments)
            if since is None or since == last:
                return end, last, False
            at = _after(segments, since) if since else position(1, 0)
            return (end if at is None else at), since, at is None

    def add(self, log: LineLog, line: RunLine) -> None:
        with self._lock:
            self._waiting.append((log, line))
            if len(self._waiting) >= MOST_WAITING:
                self.flush()

    def flush(self) -> None:
        """Write the lines that wait, then add their events."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            of_log: dict[LineLog, list[RunLine]] = {}
            for log, line in waiting:
                of_log.setdefault(log, []).append(line)
            if of_log:
                try:
                    with locked(self._folder):
                        pieces: dict[str, list[Piece]] = {}
                        for log, lines in of_log.items():
                            self._write(log, lines, pieces.setdefault(log.stem, []))
                        self._events.add(pieces)
                except OSError as error:
                    for log in of_log:
                        self._give_up(log, error)

    def leave(self, log: LineLog) -> None:
        """End a stream; close what is open after the last one of this process."""
        self.flush()
        if self._packing:
            self._packing.result()
        self._note_dropped(log)
        with _opening, self._lock:
            self.users -= 1
            if self.users:
                return
            _open.pop(self._folder, None)
            for tail in self._tails.values():
                tail.close()
            self._events.close()

    def _write(self, log: LineLog, lines: list[RunLine], pieces: list[Piece]) -> None:
        try:
            tail = self._tails.get(log.stem) or _Tail(self._lines, log.stem)
            self._tails[log.stem] = tail
            tail.look_again()
            if log.at != tail.end:
                log.ahead = chain(log.ahead or (), _times(segments_in(self._lines, log.stem), log.at, tail.end))
                log.at = tail.end
            new = [line for line in lines if not _is_stored(log, line)]
            while new and not log.is_broken:
                new = self._fill(tail, new, pieces)
                log.at = tail.end
        except OSError as error:
            self._give_up(log, error)
        self._note_dropped(log)

    def _note_dropped(self, log: LineLog) -> None:
        if log.stem in self._dropped:
            self._dropped.discard(log.stem)
            log.problem = (
                f"{log.stem.partition('@')[0]} has written more than {STORED_BYTES // 2**20} MiB of compressed lines: "
                "of those on this computer the beginning and the end stay, the middle is removed"
            )

    def _fill(self, tail: _Tail, lines: list[RunLine], pieces: list[Piece]) -> list[RunLine]:
        """Write lines until the segment is full; return the others."""
        content, rest = bytearray(), deque(lines)
        while rest and tail.size + len(content) < SEGMENT_BYTES:
            content += as_json(rest.popleft())
        pieces.append((tail.number, tail.size, bytes(content)))
        try:
            tail.write(bytes(content))
        except OSError:
            pieces.pop()
            raise
        if tail.size >= SEGMENT_BYTES:
            self._events.full[tail.stem] = tail.end
            full = tail.next()
            with suppress(RuntimeError):  # the interpreter is ending: the next process compresses it
                self._packing = _PACKER.submit(self._pack, full)
        return list(rest)

    def _pack(self, full: Segment) -> None:
        with suppress(OSError):  # it stays as it is, and is read so
            pack(full)
        packed = [one for one in segments_in(self._lines, full.stem) if one.packed]
        total = 0
        for one in reversed(packed[1:]):
            total += one.size
            if total > STORED_BYTES:
                one.path.unlink(missing_ok=True)
                self._dropped.add(full.stem)

    def _give_up(self, log: LineLog, error: OSError) -> None:
        log.is_broken = True
        log.problem = f"lines cannot be stored on this computer any more ({error.strerror or error}): {self._folder}"


class _Tail:
    """The segment of a container that is written. Its user holds the lock."""

    def __init__(self, lines: Path, stem: str) -> None:
        self._lines, self.stem = private_folder(lines), stem
        self.number, self.size, self._descriptor = 1, 0, -1
        self._open()

    @property
    def end(self) -> int:
        return position(self.number, self.size)

    def look_again(self) -> None:
        """Find the end of what other processes have written meanwhile."""
        if self._descriptor >= 0:
            state = os.fstat(self._descriptor)
            if state.st_nlink and state.st_size == self.size:
                return
        self._open()

    def write(self, content: bytes) -> None:
        """Whole lines: all of them or none."""
        if self._descriptor < 0:
            self._create()
        written = 0
        try:
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += written

    def next(self) -> Segment:
        """Begin the next segment; return the full one. It may be compressed from then on, and so is never the newest
        one, which other processes open."""
        full = self._segment()
        self.close()
        self.number, self.size = self.number + 1, 0
        self._create()
        return full

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _create(self) -> None:
        self._descriptor = os.open(self._segment().path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def _segment(self) -> Segment:
        path = self._lines / f"{self.stem}.{self.number:04}.jsonl"
        return Segment(path=path, stem=self.stem, number=self.number, packed=False)

    def _open(self) -> None:
        self.close()
        segments = segments_in(self._lines, self.stem)
        newest = segments[-1] if segments else None
        self.number, self.size = newest.number if newest else 1, 0
        for one in segments[:-1]:
            if not one.packed:  # a process ended before it had compressed it
                _PACKER.submit(pack, one)
        if newest and newest.packed:
            self.number += 1
            (self._segment().path.with_name(f"{self.stem}.{newest.number:04}.jsonl")).unlink(missing_ok=True)
            return
        if newest:
            self._descriptor = os.open(newest.path, os.O_RDWR | os.O_APPEND)
            self.size = len(newest.content())
            if os.fstat(self._descriptor).st_size != self.size:
                os.ftruncate(self._descriptor, self.size)  # a crash cut the last line short: its stream gives it again
            if self.size >= SEGMENT_BYTES:
                _PACKER.submit(pack, self.next())


def open_log(folder: Path, node: str, container: str, since: str | None = None) -> LineLog:
    """Open the lines of a container of this run for appending."""
    with _opening:
        writer = _open.setdefault(folder, RunWriter(folder))
        writer.users += 1
    return LineLog(writer, stem_of(node, container), since)


def settle(folder: Path) -> None:
    """Write what waits in this process."""
    if writer := _open.get(folder):
        writer.flush()


@contextmanager
def locked(folder: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a run's lines. OSError: there can be none, or another process has held it for so long."""
    descriptor = os.open(private_folder(folder) / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + wait_s
    try:
        while True:
            try:
                flock(descriptor, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _is_stored(log: LineLog, line: RunLine) -> bool:
    if log.ahead is None:
        return False
    own = line.time.encode("utf-8", "replace")
    if any(one == own for one in log.ahead):
        return True
    log.ahead = None  # all that others have written was passed over
    return False


def end_of(segments: list[Segment]) -> tuple[int, str]:
    """Position of the end of these lines, and the time of the last one; of one moment, since others may write."""
    end = position(1, 0)
    for number, segment in enumerate(reversed(segments)):
        content = segment.content()
        end = end if number else position(segment.number, len(content))
        for line in filter(None, map(parse_line, raw_lines_backwards(content))):
            return end, line.time
    return end, ""


def _after(segments: list[Segment], since: str) -> int | None:
    """Position after the last line of this time."""
    for segment in reversed(segments):
        content = segment.content()
        at = content.rfind(b'{"time": "%b"' % since.encode("utf-8", "replace"))
        if at >= 0:
            return position(segment.number, content.find(b"\n", at) + 1)
    return None


def _times(segments: list[Segment], begin: int, end: int) -> Iterator[bytes]:
    """Times of the lines between two positions."""
    for segment in segments:
        first, last = max(0, begin - position(segment.number, 0)), end - position(segment.number, 0)
        if last > 0 and first >> 32 == 0:
            yield from times_of(segment.content()[first:last])
