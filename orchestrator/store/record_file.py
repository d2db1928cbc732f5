"""The record of a run: one JSON object per line, only ever appended to, and synced to the disk with each entry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from typing import IO

from orchestrator.nodes.state_files import open_private
from orchestrator.state.journal import Journal
from orchestrator.state.journal_entries import JournalEntry, decode_entry, encode_entry
from orchestrator.state.journal_fold import fold

NAME = "record.jsonl"


@dataclass
class RecordFile:
    """`record.jsonl` in the folder of a run. Several processes may append to it: each entry is written under a lock."""

    path: Path
    clock: Callable[[], float] = time.time
    _known: tuple[tuple[int, int, int], Journal] = field(default=((0, 0, -1), Journal()))

    def journal(self) -> Journal:
        """The state of the run by all entries so far; an empty one if there is no file or it cannot be read."""
        try:
            state = self.path.stat()
        except OSError:
            return Journal()
        stamp = (state.st_ino, state.st_mtime_ns, state.st_size)
        if stamp != self._known[0]:
            with suppress(OSError), self.path.open("rb") as file:
                self._known = stamp, fold(_entries(file))
        return self._known[1]

    def append(self, *entries: JournalEntry) -> None:
        """Append entries, each with the time of this moment. OSError: the disk is full, or not writable."""
        with self._locked() as file:
            self._write(file, entries)

    def append_if(self, wanted: Callable[[Journal], bool], *entries: JournalEntry) -> bool:
        """Append entries only if the record's state at this moment is as wanted: of two processes, one does it."""
        with self._locked() as file:
            file.seek(0)
            if not wanted(fold(_entries(file))):
                return False
            self._write(file, entries)
        return True

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
            _sync_folder(self.path.parent)


def _entries(file: IO[bytes]) -> Iterator[JournalEntry | None]:
    """Entries in order; None for a line that was cut short: no beginning of a JSON object is one itself."""
    for line in file:
        yield decode_entry(line.decode("utf-8", "replace"))


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
