"""The record of a run: one JSON object per line, only ever appended to, and synced to the disk with each entry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from threading import Lock
from typing import IO

from orchestrator.nodes.state_files import open_private, sync_folder
from orchestrator.state.journal import Journal, fold
from orchestrator.state.journal_entries import JournalEntry, decode_entry, encode_entry

NAME = "record.jsonl"


@dataclass
class RecordFile:
    """`record.jsonl` in the folder of a run. Several processes may append to it: each entry is written under a lock."""

    path: Path
    clock: Callable[[], float] = time.time
    _stamp: tuple[int, int, int] = (0, 0, -1)
    """Inode, time and size of the file as `_journal` knows it."""
    _journal: Journal = field(default_factory=Journal)
    _entries: list[JournalEntry | None] = field(default_factory=list)
    """Entries of all complete lines up to the byte `_end`; `_last` is the last of these lines."""
    _end: int = 0
    _last: bytes = b""
    _reading: Lock = field(default_factory=Lock)

    def journal(self) -> Journal:
        """The state of the run by all entries so far; an empty one if there is no file or it cannot be read."""
        try:
            state = self.path.stat()
        except OSError:
            return Journal()
        stamp = (state.st_ino, state.st_mtime_ns, state.st_size)
        if stamp != self._stamp:
            with suppress(OSError), self.path.open("rb") as file:
                self._journal, self._stamp = self._read(file), stamp
        return self._journal

    def append(self, *entries: JournalEntry) -> None:
        """Append entries, each with the time of this moment. OSError: the disk is full, or not writable."""
        with self._locked() as file:
            self._write(file, entries)

    def append_if(self, wanted: Callable[[Journal], bool], *entries: JournalEntry) -> bool:
        """Append entries only if the record's state at this moment is as wanted: of two processes, one does it."""
        with self._locked() as file:
            if not wanted(self._read(file)):
                return False
            self._write(file, entries)
        return True

    def _read(self, file: IO[bytes]) -> Journal:
        """The state by all lines; those that were read before are not read again."""
        with self._reading:
            file.seek(self._end - len(self._last))
            if file.read(len(self._last)) != self._last:  # it is another file, or was cut
                self._entries, self._end, self._last = [], 0, b""
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):  # cut short, or still being written
                    return fold([*self._entries, _entry(line)])
                self._entries.append(_entry(line))
                self._end, self._last = self._end + len(line), line
            return fold(self._entries)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        with open_private(self.path) as file:
            flock(file, LOCK_EX)
            try:
                yield file
            finally:
                flock(file, LOCK_UN)

    def _write(self, file: IO[bytes], entries: tuple[JournalEntry, ...]) -> None:
        size = os.fstat(file.fileno()).st_size
        cut_short = bool(size) and os.pread(file.fileno(), 1, size - 1) != b"\n"
        lines = "".join(encode_entry(replace(entry, at=self.clock())) for entry in entries).encode("ascii")
        lines = b"\n" + lines if cut_short else lines
        try:
            while lines:
                lines = lines[os.write(file.fileno(), lines) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)  # no one has acted upon it yet
            raise
        if not size:
            sync_folder(self.path.parent)


def _entry(line: bytes) -> JournalEntry | None:
    """The entry of a line; None for one that was cut short: no beginning of a JSON object is one itself."""
    return decode_entry(line.decode("utf-8", "replace"))
