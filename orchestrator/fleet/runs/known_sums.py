"""SHA-256 of the files of a data folder, kept on the controller: a file that has not changed is not read again.

A file counts as unchanged while size, modification time, change time, device and inode are. The change time cannot be
set by a program, so that a copy which restores the modification time is noticed. Only hints for speed: a file of sums
that is lost or cannot be read costs one reading of the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from platformdirs import user_state_path

from orchestrator.nodes.state_files import replace_file

CHUNK = 1024 * 1024
SAY_EVERY_S = 10.0
SETTLED_NS = 2 * 10**9
"""Age of a change from which its time is trusted: two writes within a tick of the file system's clock have one time."""
_SHA256 = frozenset("0123456789abcdef")

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
    _said: float = field(default=0.0)

    def sums(self, folder: Path, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 of each file by its path in the folder. An interrupted call keeps those that it has read."""
        known = _load(folder)
        stamps = {name: _stamp((folder / name).stat()) for name in names}
        found = {name: known[name][1] for name, stamp in stamps.items() if name in known and known[name][0] == stamp}
        missing = [name for name in stamps if name not in found]
        if not missing and len(known) == len(found):
            return found
        self._to_read = sum(stamps[name][0] for name in missing)
        self._began = self._said = self.monotonic()
        keep = {name: (stamps[name], digest) for name, digest in found.items()}
        try:
            for name in missing:
                found[name] = self._read(folder, name)
                if self._is_settled(folder / name, stamps[name]):
                    keep[name] = (stamps[name], found[name])
        finally:
            _save(folder, keep)
        return found

    def _read(self, folder: Path, name: str) -> str:
        def came(amount: int) -> None:
            self.read += amount
            self._say(folder)

        return sum_of(folder / name, came)

    def _is_settled(self, file: Path, before: Stamp) -> bool:
        """Whether the file was not written while it was read, nor just before."""
        changed_ns = max(before[1], before[2])
        return _stamp(file.stat()) == before and self.now_ns() - changed_ns > SETTLED_NS

    def _say(self, folder: Path) -> None:
        now = self.monotonic()
        if now - self._said < SAY_EVERY_S:
            return
        self._said = now
        left_s = (now - self._began) * max(0, self._to_read - self.read) / self.read
        amount = f"{self.read / 1e9:.1f} of {self._to_read / 1e9:.1f} GB"
        self.notify(f"reading {folder}: {amount}, {left_s / 60:.0f} min left; files that do not change are read once")


def sum_of(file: Path, came: Callable[[int], object] = lambda _bytes: None) -> str:
    """SHA-256 of a file; `came` gets the bytes of each chunk."""
    content = hashlib.sha256()
    with file.open("rb") as source:
        while chunk := source.read(CHUNK):
            content.update(chunk)
            came(len(chunk))
    return content.hexdigest()


def _stamp(of: os.stat_result) -> Stamp:
    return of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_dev, of.st_ino


def _file(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return user_state_path("orch") / "sums" / f"{name}.json"


def _load(folder: Path) -> dict[str, tuple[Stamp, str]]:
    """Stamp and sum by path; empty if there is no valid file."""
    try:
        known = {}
        for name, (size, modified, changed, device, inode, digest) in json.loads(_file(folder).read_bytes()).items():
            stamp = (int(size), int(modified), int(changed), int(device), int(inode))
            if len(digest) != 64 or not _SHA256.issuperset(digest):
                return {}
            known[str(name)] = (stamp, str(digest))
        return known
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _save(folder: Path, known: dict[str, tuple[Stamp, str]]) -> None:
    with suppress(OSError):  # a full disk of the controller costs speed only
        replace_file(_file(folder), json.dumps({name: [*stamp, digest] for name, (stamp, digest) in known.items()}))
