"""Sums of the files of a folder, and its digest. Sums of data are kept on the controller: a file that has not changed
is not read again.

A file counts as unchanged while size, modification time, change time, device and inode are. The change time cannot be
set by a program, so that a copy which restores the modification time is noticed. Only hints for speed: a file of sums
that is lost or cannot be read costs one reading of the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from platformdirs import user_state_path

from contract.data_check import BLOCK, HEXADECIMAL, SHA256, FileSums, digits_of
from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.data import DIGEST_LENGTH
from orchestrator.specs.errors import ConfigError

SAY_EVERY_S = 10.0
SETTLED_NS = 2 * 10**9
"""Age of a change from which its time is trusted: two writes within a tick of the file system's clock have one time."""

Stamp = tuple[int, int, int, int, int]


@dataclass(kw_only=True)
class SumsReader:
    """Hashes the files of one folder, with what is known of them from earlier."""

    notify: Callable[[str], object] = lambda _line: None
    monotonic: Callable[[], float] = time.monotonic
    now_ns: Callable[[], int] = time.time_ns
    read: int = 0
    """Bytes that have been read."""
    _to_read: int = 0
    _began: float = field(default=0.0)
    _reported: float = field(default=0.0)

    def sums(self, folder: Path, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 of each file by its path in the folder."""
        return {name: sums.sha256 for name, sums in self.of_files(folder, names).items()}

    def of_files(self, folder: Path, names: Iterable[str]) -> dict[str, FileSums]:
        """All sums of each file by its path in the folder. An interrupted call keeps those that it has read."""
        known = _load(folder)
        stamps = {name: _stamp((folder / name).stat()) for name in names}
        found = {name: known[name][1] for name, stamp in stamps.items() if name in known and known[name][0] == stamp}
        missing = [name for name in stamps if name not in found]
        if not missing and len(known) == len(found):
            return found
        self._to_read = sum(stamps[name][0] for name in missing)
        self._began = self._reported = self.monotonic()
        keep = {name: (stamps[name], sums) for name, sums in found.items()}
        try:
            for name in missing:
                found[name] = self._read(folder, name)
                if self._is_settled(folder / name, stamps[name]):
                    keep[name] = (stamps[name], found[name])
        finally:
            _save(folder, keep)
        return found

    def _read(self, folder: Path, name: str) -> FileSums:
        def came(amount: int) -> None:
            self.read += amount
            self._say(folder)

        return sums_of(folder / name, came)

    def _is_settled(self, file: Path, before: Stamp) -> bool:
        """Return whether the file was not written while it was read, nor just before."""
        changed_ns = max(before[1], before[2])
        return _stamp(file.stat()) == before and self.now_ns() - changed_ns > SETTLED_NS

    def _say(self, folder: Path) -> None:
        now = self.monotonic()
        if now - self._reported < SAY_EVERY_S:
            return
        self._reported = now
        left_s = (now - self._began) * max(0, self._to_read - self.read) / self.read
        amount = f"{self.read / 1e9:.1f} of {self._to_read / 1e9:.1f} GB"
        self.notify(f"reading {folder}: {amount}, {left_s / 60:.0f} min left; files that do not change are read once")


def sums_of(file: Path, came: Callable[[int], object] = lambda _bytes: None) -> FileSums:
    """Length, SHA-256, and CRC-32 of each block of a file; `came` gets the bytes of each block."""
    content, blocks, size = hashlib.sha256(), list[str](), 0
    with file.open("rb") as source:
        while block := source.read(BLOCK):
            content.update(block)
            blocks.append(f"{zlib.crc32(block):08x}")
            size += len(block)
            came(len(block))
    return FileSums(size, content.hexdigest(), "".join(blocks))


def sum_of(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def data_digest(folder: Path, notify: Callable[[str], object] = lambda _line: None) -> str:
    """`folder_digest` of a data folder; reads only the files that have changed since they were last read."""
    return digest_of(SumsReader(notify=notify).sums(folder, names_in(folder)))


def folder_digest(folder: Path, names: Sequence[str] | None = None) -> str:
    """A name for a folder's content: file names and bytes decide, times and owners do not. `names`: default, all."""
    return digest_of(file_sums(folder, names_in(folder) if names is None else names))


def file_sums(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each file, by its path in the folder."""
    return {name: sum_of(folder / name) for name in names}


def names_in(folder: Path) -> tuple[str, ...]:
    """Paths of all files in the folder, relative to it. ConfigError if it is not a folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    return tuple(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


def digest_of(content: Mapping[str, str]) -> str:
    """Digest of a folder from the SHA-256 of each file, by name."""
    whole = hashlib.sha256()
    for name in sorted(content, key=PurePosixPath):
        whole.update(f"{name}\0{content[name]}\n".encode())
    return whole.hexdigest()[:DIGEST_LENGTH]


def _stamp(of: os.stat_result) -> Stamp:
    return of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_dev, of.st_ino


def _file(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return user_state_path("orch") / "sums" / f"{name}.json"


def _load(folder: Path) -> dict[str, tuple[Stamp, FileSums]]:
    """Stamp and sums by path; empty if there is no valid file."""
    try:
        known = {}
        for name, (size, modified, changed, device, inode, digest, blocks) in json.loads(
            _file(folder).read_bytes()
        ).items():
            stamp = (int(size), int(modified), int(changed), int(device), int(inode))
            if not SHA256.fullmatch(digest) or not HEXADECIMAL.fullmatch(blocks) or len(blocks) != digits_of(stamp[0]):
                return {}
            known[str(name)] = (stamp, FileSums(stamp[0], str(digest), str(blocks)))
        return known
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _save(folder: Path, known: dict[str, tuple[Stamp, FileSums]]) -> None:
    content = {name: [*stamp, sums.sha256, sums.blocks] for name, (stamp, sums) in known.items()}
    with suppress(OSError):  # a full disk of the controller costs speed only
        replace_file(_file(folder), json.dumps(content))
