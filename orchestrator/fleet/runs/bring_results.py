"""Copy the files that a run wrote from its nodes to the controller.

Each node has its part of the free disk space; files that do not fit are left out by name. Holes of files stay holes. A
second call continues: files that are here are skipped, and a large file that was cut off is continued where it ended.
While a run is active, a file comes as it is when its turn comes, and those that are written to meanwhile are named.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.fleet.runs.results import Results, RunFile
from orchestrator.nodes.archive import TarError
from orchestrator.nodes.interface import MIB, TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.nodes.received_archive import received_files
from orchestrator.specs.errors import CommandFailedError, PreflightError

LARGE = 64 * MIB
"""Bytes from which a file is transferred on its own, so that a second call continues it."""
BATCH_FILES, BATCH_BYTES = 200, 256 * MIB
SPARE = 256 * MIB
"""Bytes that stay free on the controller's disk."""
MOST_NAMED = 5

# Constants. $1: the run's folder on the node; its files follow, or are on stdin. The exit code 1 of tar: a file has
# changed while it was read; another one is an error.
_ARCHIVE = 'cd -- "$1" && shift && { tar -c -S -- "$@" || [ $? -eq 1 ]; }'
_FACTS = r"""cd -- "$1" && xargs -0 -r stat --printf '%s %Y %n\0' -- 2>/dev/null
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class Brought:
    """Result of copying the files of a run."""

    folder: Path
    moved: int
    """Bytes that were transferred."""
    left_out: tuple[RunFile, ...]
    """Files for which the disk has no room."""
    still_written: tuple[RunFile, ...]
    """Files that have changed since they were copied."""
    removed: tuple[RunFile, ...]
    """Files that were no longer there when their turn came."""
    outcomes: tuple[Outcome[Node, None], ...]


def bring_results(nodes: Sequence[Node], results: Results, to: Path, notify: Notify) -> Brought:
    """Copy the files into `to`/runs/RUN. PreflightError before anything is copied if no file fits on the disk.

    Each node's error, which names the files that did not come, is its outcome; the others continue.
    """
    folder = to / "runs" / results.run_id
    missing = [file for file in results.files if not _is_here(file, folder / file.target)]
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        (folder / ".gitignore").write_text("*\n")  # results beside the code are not sent with the next launch
    free = shutil.disk_usage(folder).free
    fitting = _fitting(missing, folder, free - SPARE)
    left_out = tuple(file for file in missing if file not in fitting)
    if left_out and not fitting:
        raise PreflightError(
            f"{_gb(_size(left_out))} to copy, and {_gb(free)} are free in {to.resolve()}; nothing was copied",
            hint=f"another folder: --to DIR; or some of the files: orch pull {results.run_id} PATH",
        )
    concerned = [node for node in nodes if any(file.node == node.name for file in missing)]
    still_written, removed = list[RunFile](), list[RunFile]()
    counter = _Counter(notify, {node.name: _size(file for file in fitting if file.node == node.name) for node in nodes})

    def bring(node: Node) -> None:
        copying = _Copying(node, results.folders[node.name], folder, counter)
        copying.bring([file for file in missing if file.node == node.name and file in fitting])
        still_written.extend(copying.still_written)
        removed.extend(copying.removed)
        without_room = [f"{_described(file)} and {_gb(free)} are free" for file in left_out if file.node == node.name]
        if problems := copying.problems + without_room:
            more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
            raise CommandFailedError(
                f"not copied: {'; '.join([*problems[:MOST_NAMED], *more])}",
                hint="another folder: --to DIR" if without_room else "",
                node=node.name,
            )

    outcomes = fan_out(concerned, bring, timeout_s=TRANSFER_TIMEOUT_S)
    return Brought(
        folder=folder,
        moved=counter.moved,
        left_out=left_out,
        still_written=tuple(still_written),
        removed=tuple(removed),
        outcomes=outcomes,
    )


def _fitting(files: Sequence[RunFile], folder: Path, room: int) -> set[RunFile]:
    """Those for which there is room. The nodes share it equally, and what one does not need is the others'; a node's
    smallest files come first."""
    needed: dict[str, list[tuple[int, RunFile]]] = {}
    for file in files:
        needed.setdefault(file.node, []).append((file.size - _offset(_part(folder / file.target, file)), file))
    fitting = set[RunFile]()
    by_need = sorted(needed.values(), key=lambda part: sum(size for size, _ in part))
    for number, part in enumerate(by_need):
        share = room // (len(by_need) - number)
        for size, file in sorted(part, key=lambda one: one[0]):
            if size > share:
                break
            fitting.add(file)
            share -= size
            room -= size
    return fitting


def _described(file: RunFile) -> str:
    data = f", {_gb(file.held)} of them data" if file.held < file.size else ""
    return f"{file.path} has {_gb(file.size)}{data},"


def _size(files: Iterable[RunFile]) -> int:
    return sum(file.size for file in files)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


@dataclass
class _Counter:
    """Counts the bytes that came, and reports progress by node until it has all of them."""

    notify: Notify
    totals: Mapping[str, int]
    done: dict[str, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, node: str, count: int) -> None:
        with self.lock:
            self.done[node] = self.done.get(node, 0) + count
            if self.done[node] < self.totals[node]:
                self.notify(node, Progress(text="copying", done=self.done[node], total=self.totals[node]))

    @property
    def moved(self) -> int:
        return sum(self.done.values())


@dataclass
class _Copying:
    """Copies files of one node, the rest of them after a failure too."""

    node: Node
    folder: str
    """Folder on the node."""
    to: Path
    counter: _Counter
    problems: list[str] = field(default_factory=list)
    still_written: list[RunFile] = field(default_factory=list)
    removed: list[RunFile] = field(default_factory=list)

    def bring(self, files: Sequence[RunFile]) -> None:
        """Copy them. `problems` has what went wrong, with the names of files."""
        batches = list(_batches(files))
        for batch in batches:  # which a batch with fewer files is added to
            try:
                if batch[0].size < LARGE or _is_sparse(batch[0]):
                    came = self._bring_archive(batch)
                else:
                    came = self._bring_large(batch[0])
                there = self._facts(batch)
                self.still_written += [
                    one for one in batch if one.path in came and came[one.path] != there.get(one.path)
                ]
            except CommandFailedError as error:
                there = self._facts(batch)
                left = [file for file in batch if file.path in there]
                if len(left) == len(batch):
                    self.problems.append(error.message)
                    continue
                self.removed += [file for file in batch if file not in left]
                batches += [left] if left else []
            except OSError as error:
                where = error.filename or self.to
                self.problems.append(f"cannot write {where} on this computer: {error.strerror}")

    def _facts(self, files: Sequence[RunFile]) -> dict[str, tuple[int, int]]:
        """Size and time of those that are there now, by their path."""
        names = b"".join(os.fsencode(file.path) + b"\0" for file in files)
        answer = self.node.run(["sh", "-c", _FACTS, "sh", self.folder], stdin=names, timeout_s=TRANSFER_TIMEOUT_S)
        lines = (
            re.fullmatch(r"([0-9]{1,16}) ([0-9]{1,12}) (.+)", line, re.DOTALL) for line in answer.stdout.split("\0")
        )
        return {one[3]: (int(one[1]), int(one[2])) for one in lines if one}

    def _bring_archive(self, files: Sequence[RunFile]) -> dict[str, tuple[int, int]]:
        """Copy files in one tar archive; return size and time of each. Only names that were asked for are written, and
        only as regular files."""
        missing, came = {file.path: file for file in files}, dict[str, tuple[int, int]]()
        chunks = self.node.stream(["sh", "-c", _ARCHIVE, "sh", self.folder, *missing])
        try:
            for member, pieces in received_files(chunks, {name: file.size + LARGE for name, file in missing.items()}):
                file = missing.pop(member.name, None)
                if file is None:
                    raise tarfile.TarError(f"{member.name} twice")
                part = _part(self.to / file.target, file)
                with part.open("wb") as target:
                    for offset, piece in pieces:
                        target.seek(offset)
                        target.write(piece)
                    target.truncate(member.size)
                self.counter.add(self.node.name, file.size)
                came[file.path] = member.size, int(member.mtime)
                _finish(part, self.to / file.target, int(member.mtime))
        except (tarfile.TarError, TarError, ValueError, OverflowError) as error:
            self.problems.append(f"the archive that it sent cannot be read: {error}")
        else:
            self.problems += [f"{name} was not sent" for name in missing]
        return came

    def _bring_large(self, file: RunFile) -> dict[str, tuple[int, int]]:
        """Copy a file, from where the last call ended; return its size and time."""
        part = _part(self.to / file.target, file)
        left = file.size - _offset(part)
        chunks: Any = self.node.stream(["tail", "-c", f"+{file.size - left + 1}", "--", f"{self.folder}/{file.path}"])
        with part.open("ab") as target:
            while left and (chunk := next(chunks, b"")):
                target.write(chunk[:left])
                self.counter.add(self.node.name, len(chunk[:left]))
                left -= len(chunk[:left])
        chunks.close()
        if left:
            raise CommandFailedError(f"{file.path} became smaller while it was copied: try again")
        _finish(part, self.to / file.target, file.mtime)
        return {file.path: (file.size, file.mtime)}


def _is_sparse(file: RunFile) -> bool:
    """Return whether most of it is holes: a disk that compresses, too, holds fewer bytes than a file has."""
    return 2 * file.held < file.size


def _batches(files: Sequence[RunFile]) -> Iterator[list[RunFile]]:
    """Yield small files together, then each large one."""
    batch, size = list[RunFile](), 0
    for file in files:
        if file.size >= LARGE:
            continue
        if batch and (len(batch) == BATCH_FILES or size + file.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch
    yield from ([file] for file in files if file.size >= LARGE)


def _part(target: Path, file: RunFile) -> Path:
    """The file while it is incomplete; another content of the same name has another one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{file.size}-{file.mtime}.part")


def _finish(part: Path, target: Path, mtime: int) -> None:
    os.utime(part, (mtime, mtime))
    part.replace(target)


def _offset(part: Path) -> int:
    """Bytes that are here."""
    with suppress(OSError):
        return part.stat().st_size
    return 0


def _is_here(file: RunFile, target: Path) -> bool:
    with suppress(OSError):
        there = target.stat()
        return (there.st_size, int(there.st_mtime)) == (file.size, file.mtime)
    return False
