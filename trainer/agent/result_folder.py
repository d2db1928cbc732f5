"""The folder of a run on this node as a place of result files: listed, opened and written to without following a link.

Ranks and other nodes decide on names in it: each part of a path is opened by itself, so that no link leads elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from contract.result_files import MAX_FILES, ResultFile, ResultFiles, bounded
from contract.result_paths import HEAD_BYTES, content_problem, path_problem
from contract.run_folder import AGENTS_TOKEN, CODE_FOLDER, COPIED

MAX_LOOKED_AT = 2_000
"""Files written since the launch that are looked at."""
MAX_RECORD_BYTES = 4 * 1024 * 1024
"""Bytes that are read of the record of copied files."""
MAX_LIST_BYTES = 16 * 1024 * 1024
"""Bytes that are read of the list of launched files."""
HASHED_BYTES, HASHED_IN_ALL = 256 * 1024, 8 * 1024 * 1024
"""Size up to which a file is hashed for the list, and the bytes of all of these."""
SPARE_BYTES = 256 * 1024 * 1024
"""Free space to leave: a full disk would make the next checkpoint fail."""
ASIDE = ".copying"
ABANDONED_S = 24 * 3600.0
"""Age from which a folder of incomplete files is of an agent that was killed."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of a file system without hard links."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RefusedFileError(Exception):
    """A file that is not copied, with the reason as text."""


@dataclass(frozen=True, kw_only=True)
class _Launched:
    """Files that the run was launched with, and when they were complete on this node."""

    names: frozenset[str]
    at_ns: int


@dataclass
class IncomingFile:
    """A file that is being written aside."""

    descriptor: int
    size: int = 0

    def __post_init__(self) -> None:
        self._hash, self._head = hashlib.sha256(), b""

    def write(self, piece: bytes) -> None:
        self._head = (self._head + piece)[:HEAD_BYTES]
        self._hash.update(piece)
        self.size += len(piece)
        while piece:
            piece = piece[os.write(self.descriptor, piece) :]

    @property
    def head(self) -> bytes:
        return self._head

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class ResultFolder:
    """The folder of a run on this node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settling = Lock()

    # ── Listing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def listed(self) -> ResultFiles:
        """List the files that ranks have written here since the launch, the newest ones if there are many.

        A file of the launch is listed only if it has changed. Links, hidden files, programs and files of this project
        are left out.
        """
        complete, found = True, list[ResultFile]()
        for number, file in enumerate(self._changed()):
            if number == MAX_LOOKED_AT:
                complete = False
                break
            if not path_problem(file.path):
                found.append(file)
        found.sort(key=lambda file: -file.modified_us)
        complete &= len(found) <= MAX_FILES
        copied, budget, files = self._copied(), HASHED_IN_ALL, list[ResultFile]()
        for file in found[:MAX_FILES]:
            hashed = file.size <= min(HASHED_BYTES, budget)
            budget -= file.size if hashed else 0
            with contextlib.suppress(OSError, RefusedFileError), self.reading(file.path) as descriptor:
                sha256 = hashlib.sha256(os.read(descriptor, HASHED_BYTES)).hexdigest() if hashed else ""
                is_copy = copied.get(file.path) == [file.size, file.modified_us]
                files.append(replace(file, copied=is_copy, sha256=sha256))
        return replace(bounded(files, complete=complete), folder=self._identity())

    def has_checkpoints(self) -> bool:
        """Return whether the run has written checkpoints of this project here: they are copied in another way."""
        return any((self._folder / "checkpoints").glob("step-*"))

    def _identity(self) -> str:
        """Number and time of a file of the launch: on a shared folder it is the same file for all nodes."""
        for name in ("code-*.list", AGENTS_TOKEN):
            for file in sorted(self._folder.glob(name)):
                with contextlib.suppress(OSError):
                    status = file.stat()
                    return f"{status.st_ino}.{status.st_mtime_ns}"
        return ""

    def _changed(self) -> Iterator[ResultFile]:
        """Yield the plain files that were written since the launch."""
        launched = self._launched()
        for path, entry in self._entries():
            with contextlib.suppress(OSError):  # removed in the meantime
                status = entry.stat(follow_symlinks=False)
                is_launched = path.removeprefix(f"{CODE_FOLDER}/") in launched.names
                if is_launched and status.st_mtime_ns <= launched.at_ns:
                    continue
                if stat.S_ISREG(status.st_mode) and not status.st_mode & 0o111:
                    modified_us = max(0, status.st_mtime_ns // 1000)
                    yield ResultFile(path=path, size=status.st_size, modified_us=modified_us, launched=is_launched)

    def _entries(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield all files below the folder with their paths; folders that are never copied are left out."""
        waiting = [""]
        while waiting:
            parent = waiting.pop()
            with contextlib.suppress(OSError), os.scandir(self._folder / parent) as entries:
                for entry in entries:
                    path = f"{parent}/{entry.name}" if parent else entry.name
                    if entry.is_symlink():
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        yield path, entry
                    elif not path_problem(f"{path}/file"):
                        waiting.append(path)

    def _launched(self) -> _Launched:
        names, at_ns = set[str](), 0
        for listed in self._folder.glob("code-*.list"):
            with contextlib.suppress(OSError), listed.open("rb") as file:
                at_ns = max(at_ns, os.fstat(file.fileno()).st_mtime_ns)
                texts = file.read(MAX_LIST_BYTES).decode(errors="surrogateescape").split("\0")
                names |= {text.removeprefix("./") for text in texts}
        return _Launched(names=frozenset(names), at_ns=at_ns)

    # ── Reading and writing ───────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[int]:
        """Open a result file. RefusedFileError: it is never copied, cannot be opened, or is a link."""
        if problem := path_problem(path):
            raise RefusedFileError(problem)
        try:
            with self._parent(path, make=False) as (parent, name):
                descriptor = os.open(name, _FILE_FLAGS, dir_fd=parent)
        except OSError as error:
            raise RefusedFileError(f"it cannot be opened: {os.strerror(error.errno or 0)}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o111:
                raise RefusedFileError("it is a program, or not a plain file")
            head = os.pread(descriptor, HEAD_BYTES, 0)
            if problem := content_problem(path, head):
                raise RefusedFileError(problem)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[Path]:
        """Make a folder for files that are not complete, and remove it at the end. Several nodes may send at once.

        RefusedFileError: the disk has no space for so many bytes.
        """
        for old in self._folder.glob(f"{ASIDE}/*"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(old)
        aside = self._folder / ASIDE / secrets.token_hex(8)
        with self._settling:
            aside.mkdir(mode=0o700, parents=True)
        try:
            free = shutil.disk_usage(self._folder).free
            if free < size + SPARE_BYTES:
                raise RefusedFileError(f"{size / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            with self._settling, contextlib.suppress(OSError):  # another node is sending, too
                aside.parent.rmdir()

    @contextlib.contextmanager
    def writing(self, file: ResultFile, room: Path) -> Iterator[IncomingFile]:
        """Write a file into `room`; after the block, give it its name if no other file has it.

        RefusedFileError: it is never copied, a file that was written here has its name, or its folder is a link.
        OSError: it cannot be written aside.
        """
        if problem := path_problem(file.path):
            raise RefusedFileError(problem)
        aside = room / "file"
        incoming = IncomingFile(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        try:
            yield incoming
            if problem := content_problem(file.path, incoming.head):
                raise RefusedFileError(problem)
            os.fsync(incoming.descriptor)
            os.utime(incoming.descriptor, ns=(file.modified_us * 1000, file.modified_us * 1000))
            try:
                with self._settling:
                    self._settle(aside, file)
            except OSError as error:
                raise RefusedFileError(f"it cannot get its name: {os.strerror(error.errno or 0)}") from None
        finally:
            os.close(incoming.descriptor)
            aside.unlink(missing_ok=True)

    def _settle(self, aside: Path, file: ResultFile) -> None:
        copied = self._copied()
        with self._parent(file.path, make=True) as (parent, name):
            try:
                there = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                _link(aside, name, parent)
            else:
                is_copy = copied.get(file.path) == [there.st_size, there.st_mtime_ns // 1000]
                if not is_copy or not stat.S_ISREG(there.st_mode):
                    raise RefusedFileError("a file that was written here has its name")
                os.replace(aside, name, dst_dir_fd=parent)
            os.fsync(parent)
        self._note({**copied, file.path: [file.size, file.modified_us]})

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Open the folder of a path, and return it with the last part. `make`: create folders that are missing."""
        *folders, name = path.split("/")
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for folder in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, 0o755, dir_fd=descriptor)
                below = os.open(folder, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor, name
        finally:
            os.close(descriptor)

    # ── Record of copied files ────────────────────────────────────────────────────────────────────────────────────────

    def _copied(self) -> Mapping[str, list[int]]:
        """Read size and time of each file that was copied here, by path. Ranks may write this file: it decides only
        which files of this node may be replaced."""
        try:
            with (self._folder / COPIED).open("rb") as file:
                values = json.loads(file.read(MAX_RECORD_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}

    def _note(self, copied: Mapping[str, list[int]]) -> None:
        scratch = self._folder / ASIDE / f"{COPIED}.new"
        scratch.write_text(json.dumps(copied), "utf-8")
        scratch.replace(self._folder / COPIED)


def _link(file: Path, name: str, parent: int) -> None:
    """Give a file a second name in this folder. FileExistsError: another file has got it since."""
    try:
        os.link(file, name, dst_dir_fd=parent)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent))
        os.replace(file, name, dst_dir_fd=parent)  # its name was taken first
