"""The log lines of a run on this controller: files of a bounded size for each container, read in both directions.

When a container's file is full the next one begins; the first and the newest stay.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.nodes.state_files import private_folder
from orchestrator.specs.run_events import RunLine

MIB = 1024 * 1024
FILE_BYTES = 64 * MIB
FILES = 4
"""Files per container: the beginning and the end of a log are what explains a failure."""
LONGEST = 8 * MIB
"""Bytes of a line in a file: a line of the log has at most 1 MiB, each character of it at most six bytes here."""
BLOCK = 64 * 1024
_NAME = re.compile(
    r"(?P<node>[^@]+?)(?:@(?P<container>[\w-]{1,12}))?\.log(?:\.(?P<number>[0-9]{1,6}))?\.jsonl", re.ASCII
)
_KINDS = {"time": str, "node": str, "node_rank": int, "text": str}


class KeptLog:
    """Appends the log lines of one container. Never raises: after a failed write, `problem` gives the reason and
    nothing more is written, so that the next read of the log resumes after the last line kept."""

    def __init__(self, folder: Path, node: str, container: str = "") -> None:
        self.problem = ""
        self._folder, self._stem = folder, f"{node}@{_short(container)}" if container else node
        self._descriptor, self._size, self._number = -1, 0, 1
        try:
            private_folder(folder)
            self._open(max((number for _, number in self._files()), default=1))
        except OSError as error:
            self._give_up(error)

    def keep(self, line: RunLine) -> None:
        self.write(as_json(line))

    def write(self, lines: str) -> None:
        """Whole lines, each with its newline."""
        if self._descriptor < 0:
            return
        content = lines.encode("utf-8", "backslashreplace")  # which is JSON too
        try:
            if self._size + len(content) > FILE_BYTES and self._size:
                self._begin_next()
            written = os.write(self._descriptor, content)
            self._size += written
            if written < len(content):
                written += os.write(self._descriptor, content[written:])  # says why the rest does not fit
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> KeptLog:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()

    def _open(self, number: int) -> None:
        file = self._folder / (f"{self._stem}.log.jsonl" if number == 1 else f"{self._stem}.log.{number}.jsonl")
        self._descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._size, self._number = os.fstat(self._descriptor).st_size, number
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a crash cut the last line short

    def _begin_next(self) -> None:
        self.close()
        self._open(self._number + 1)
        for file, _ in sorted(self._files(), key=lambda found: found[1])[1 : 1 - FILES]:
            file.unlink(missing_ok=True)
            self.problem = (
                f"{self._stem.partition('@')[0]} has written more than {FILES * FILE_BYTES // MIB} MiB of lines: of "
                "those kept here the beginning and the end stay, the middle is removed"
            )

    def _files(self) -> list[tuple[Path, int]]:
        return [(file, number) for file, stem, number in _all_files(self._folder) if stem == self._stem]

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.problem = f"lines cannot be kept on this computer any more ({error.strerror or error}): {self._folder}"


def as_json(line: RunLine) -> str:
    """The log line as one line of JSON."""
    return json.dumps(line.values(), ensure_ascii=False) + "\n"


class KeptLines:
    """Recorded log lines: the files of one folder. Invalid lines, such as truncated ones, are left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_log(self, node: str, container: str = "") -> KeptLog:
        """Open the log of this container of a node for appending."""
        return KeptLog(self.folder, node, container)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes with recorded lines."""
        return tuple(
            sorted({stem.partition("@")[0] for file, stem, _ in _all_files(self.folder) if file.stat().st_size})
        )

    def lines(self, node: str | None = None) -> Iterator[RunLine]:
        """Lines in order of time, each once: two followers of a run record the same lines."""
        yield from sorted(dict.fromkeys(self.in_files(node)), key=lambda line: (line.time, line.node_rank))

    def in_files(self, node: str | None = None) -> Iterator[RunLine]:
        """Lines file by file, in the order written."""
        for file in _files_of(self.folder, node):
            with file.open("rb") as reading:
                while raw := reading.readline(LONGEST):
                    if line := _parse(raw):
                        yield line

    def newest(self, node: str) -> Iterator[RunLine]:
        """Lines of one node, the newest first."""
        for file in reversed(_files_of(self.folder, node)):
            yield from filter(None, map(_parse, _backwards(file)))

    def last_time(self, node: str, container: str = "") -> str:
        """Time of the last recorded line of this container; empty if there is none."""
        stem = f"{node}@{_short(container)}" if container else node
        for file, _, _ in reversed([found for found in _all_files(self.folder) if found[1] == stem]):
            for line in filter(None, map(_parse, _backwards(file))):
                return line.time
        return ""


def _files_of(folder: Path, node: str | None) -> list[Path]:
    """Log files of the node in order of their first line."""
    found = [file for file, stem, _ in _all_files(folder) if node in (None, stem.partition("@")[0])]

    def first_time(file: Path) -> str:
        with file.open("rb") as reading:
            line = _parse(reading.readline(LONGEST))
        return line.time if line else ""

    return sorted(found, key=first_time)


def _all_files(folder: Path) -> list[tuple[Path, str, int]]:
    """File, node and container, number; those of one container in order."""
    found = []
    for file in folder.glob("*.jsonl"):
        if name := _NAME.fullmatch(file.name):
            stem = f"{name['node']}@{name['container']}" if name["container"] else name["node"]
            found.append((file, stem, int(name["number"] or 1)))
    return sorted(found, key=lambda one: one[1:])


def _backwards(file: Path) -> Iterator[bytes]:
    """Lines of the file, the last first."""
    with file.open("rb") as reading:
        position, rest = reading.seek(0, os.SEEK_END), b""
        while position:
            step = min(BLOCK, position)
            position -= step
            reading.seek(position)
            first, *whole = (reading.read(step) + rest).split(b"\n")
            yield from reversed(whole)
            rest = first if len(first) <= LONGEST else b""
        yield rest


def _parse(raw: bytes) -> RunLine | None:
    try:
        values: dict[str, Any] = json.loads(raw)
        sound = all(type(values[name]) is kind for name, kind in _KINDS.items())
        return RunLine(**values) if sound and isinstance(values["rank"], int | None) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _short(container: str) -> str:
    return re.sub(r"[^\w-]", "-", container[:12], flags=re.ASCII)
