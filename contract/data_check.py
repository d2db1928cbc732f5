"""Sums of the files of a data folder, and the program that compares a copy with them.

The controller writes `data/.sums/NAME` beside each copy `data/NAME`: length and SHA-256 of each file, and the CRC-32 of
each MiB, which costs a processor little, finds every flipped bit, and says which one. ADR 66 has the reasons.

    data_check.py watch MIB_S FOLDER...    compare these copies again and again, at this rate, the oldest check first
    data_check.py deep PROJECT             compare all copies of a project's folder once, SHA-256 included

A program of its own, which needs the standard library of Python 3.8 alone: an agent starts it beside its ranks, and
`orch doctor --deep` hands it to `python3 -c` on a node. One line of JSON on stdout for each damaged file. Files that
are damaged are listed in `data/.sums/NAME.damaged` until a copy of them has arrived.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import platform
import re
import signal
import stat
import sys
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

SUMS = ".sums"
"""Folder beside the copies."""
DAMAGED, CHECKED = ".damaged", ".checked"
"""Endings of files there: damaged files of a copy, and how far it was compared."""
BLOCK = 1 << 20
AGAIN_S = 60.0
"""Time from the start of a comparison of a copy to the next one."""
SAVE_S = 30.0
LEAST = 64 * 1024
"""Bytes that a file counts at least: many small ones would be opened at a high rate otherwise."""
MOST_DAMAGED = 100
"""Damaged files of a copy that are listed: a disk that loses all is one fault."""
WRONG = ("content", "length", "missing", "unreadable")
SHA256 = re.compile("[0-9a-f]{64}")
HEXADECIMAL = re.compile("[0-9a-f]*")
NAME = re.compile("[0-9a-f]{16}")


class FileSums(NamedTuple):
    """Length and sums that a file of a copy has to have."""

    size: int
    sha256: str
    blocks: str = ""
    """CRC-32 of each MiB, eight digits each; empty: not known, and SHA-256 alone decides."""


class Damage(NamedTuple):
    """A file that is not what was sent."""

    file: str
    wrong: str
    """One of `WRONG`."""
    offset: int
    size: int
    """Bytes from `offset` in which the difference lies; 1 where one flipped bit explains it."""
    intact_at: float
    """Time of the last comparison before which it was intact, or of its copy, by the clock of the node."""


def encode_sums(files: Mapping[str, FileSums]) -> str:
    """The content of a file of sums: its own SHA-256 on the first line."""
    content = json.dumps({name: list(sums) for name, sums in files.items()})
    return f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}"


def decode_sums(text: str) -> dict[str, FileSums]:
    """The sums by the path of the file in its folder. ValueError: it is not what `encode_sums` has written."""
    digest, _, content = text.partition("\n")
    if hashlib.sha256(content.encode(errors="replace")).hexdigest() != digest:
        raise ValueError("the sums are damaged themselves")
    try:
        files = {name: _file_sums(*values) for name, values in json.loads(content).items()}
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no sums of files: {error}") from None
    if any(set(name.split("/")) & {"", ".", ".."} or "\0" in name for name in files):
        raise ValueError("a path that leads out of the folder")
    return files


def _file_sums(size: Any, sha256: Any, blocks: Any) -> FileSums:
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise ValueError("a length that is none")
    if not SHA256.fullmatch(sha256) or not HEXADECIMAL.fullmatch(blocks) or len(blocks) not in (0, digits_of(size)):
        raise ValueError("sums that are none")
    return FileSums(size, sha256, blocks)


def digits_of(size: int) -> int:
    """Digits of the CRC-32 of all blocks of a file."""
    return 8 * -(-size // BLOCK)


def flipped_byte(expected: int, found: int, length: int) -> int | None:
    """Position of the byte of which one flipped bit explains the difference of two CRC-32; None: no single bit does.

    The difference is the remainder of the flipped bits alone: undo zero bytes from the end until one bit is left.
    """
    rest = expected ^ found
    for position in range(length - 1, -1, -1):
        if rest in _OF_ONE_BIT:
            return position
        index = _BY_HIGHEST[rest >> 24]
        rest = ((rest ^ _TABLE[index]) << 8 | index) & 0xFFFFFFFF
    return None


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
    return value


_TABLE = [_crc_of_byte(value) for value in range(256)]
_BY_HIGHEST = {value >> 24: index for index, value in enumerate(_TABLE)}
_OF_ONE_BIT = {_TABLE[1 << bit] for bit in range(8)}


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Copy:
    """A copy of data on this machine, and how far it was compared. In the order of names, so that the file that is
    next has waited longest."""

    def __init__(self, folder: Path) -> None:
        """OSError or ValueError: it has no valid sums."""
        self.folder, self.own = folder, folder.parent / SUMS / folder.name
        self.files = decode_sums(self.own.read_text("utf-8"))
        self.names = sorted(self.files)
        self.damaged = _read_json(self._beside(DAMAGED))
        state = _read_json(self._beside(CHECKED))
        self.before = _time_in(state, "before") or self.own.stat().st_mtime
        """Time when the last complete comparison began, or the copy was made."""
        self.began = _time_in(state, "began")
        """Time when the newest comparison began; 0: there was none."""
        self.file, self.block = str(state.get("file") or ""), int(_time_in(state, "block"))
        """Its next block, in a file; an empty name: it is complete."""
        self.saved = time.monotonic()

    def listed(self) -> Iterator[Damage]:
        """Damage that an earlier process has found, as far as the list can be read: a run may write anything there."""
        for name, values in self.damaged.items():
            with suppress(TypeError, ValueError):
                file, wrong, offset, size, intact_at = values
                if file == name and name in self.files and wrong in WRONG:
                    yield Damage(name, wrong, int(offset), int(size), float(intact_at))

    def compare(self, took: Callable[[int], object], *, deep: bool = False) -> None:
        """Compare all files, from where an interrupted comparison ended, and report each that is damaged. `took` gets
        the bytes of each step. `deep`: from the first, with SHA-256, and files that are known to be damaged, too."""
        if deep:
            self.file, self.damaged = "", {}
        if not self.file:
            self.before, self.began, self.block = self.began or self.before, time.time(), 0
        for name in self.names[bisect_left(self.names, self.file) :]:
            self.block = self.block if name == self.file else 0
            self.file = name
            damage = None if name in self.damaged else self._damage(name, took, deep=deep)
            if damage and len(self.damaged) < MOST_DAMAGED:
                self.damaged[name] = list(damage)
                _write_json(self._beside(DAMAGED), self.damaged)
                _say(self.folder.name, damage._asdict())
        self.file = ""
        if deep and not self.damaged:
            _remove(self._beside(DAMAGED))
        self._save()

    def _damage(self, name: str, took: Callable[[int], object], *, deep: bool) -> Damage | None:
        """Compare a file with its sums; None: it is intact."""
        sums = self.files[name]
        whole = hashlib.sha256() if deep or not sums.blocks else None
        at = 0 if whole else self.block * BLOCK
        took(LEAST)
        try:
            with _Reading(self.folder / name) as reading:
                if reading.size != sums.size:
                    least = min(reading.size, sums.size)
                    return Damage(name, "length", least, max(reading.size, sums.size) - least, self.before)
                while at < sums.size:
                    content = reading.block(at)
                    if damaged := _difference(content, sums, at):
                        return Damage(name, "content", *damaged, self.before)
                    if whole:
                        whole.update(content)
                    at += BLOCK
                    self.block = at // BLOCK
                    took(len(content))
                    if time.monotonic() - self.saved > SAVE_S:
                        self._save()
        except FileNotFoundError:
            return Damage(name, "missing", 0, sums.size, self.before)
        except OSError:
            return Damage(name, "unreadable", min(at, sums.size), min(BLOCK, max(0, sums.size - at)), self.before)
        if whole and whole.hexdigest() != sums.sha256:
            return Damage(name, "content", 0, sums.size, self.before)
        return None

    def _beside(self, ending: str) -> Path:
        return self.own.with_name(self.own.name + ending)

    def _save(self) -> None:
        self.saved = time.monotonic()
        state = {"before": self.before, "began": self.began, "file": self.file, "block": self.block}
        _write_json(self._beside(CHECKED), state)


def _difference(content: memoryview, sums: FileSums, at: int) -> tuple[int, int] | None:
    """Find where a block differs: offset in the file, and length."""
    digits = sums.blocks[at // BLOCK * 8 :][:8]
    length = min(BLOCK, sums.size - at)
    if len(content) != length:  # it became shorter meanwhile
        return at + len(content), length - len(content)
    found = zlib.crc32(content)
    if not digits or found == int(digits, 16):
        return None
    byte = flipped_byte(int(digits, 16), found, length)
    return (at, length) if byte is None else (at + byte, 1)


class _Reading:
    """A file that is read beside the page cache where its file system can: the disk is asked, and pages that ranks use
    stay in memory."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self.handle = os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.handle = os.open(path, flags)
        facts = os.fstat(self.handle)
        if not stat.S_ISREG(facts.st_mode):
            os.close(self.handle)
            raise FileNotFoundError(f"{path} is not a regular file")
        self.size = facts.st_size
        self.buffer = mmap.mmap(-1, BLOCK)  # aligned, as such a read needs

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.handle)

    def block(self, offset: int) -> memoryview:
        """Read up to a MiB from an offset on; less at the end of the file alone. Valid until the next call."""
        view = memoryview(self.buffer)
        try:
            got = os.preadv(self.handle, [view], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            got = 0
        if got < min(BLOCK, self.size - offset):  # the rest without this way of reading, where it refuses or ends early
            fcntl.fcntl(self.handle, fcntl.F_SETFL, fcntl.fcntl(self.handle, fcntl.F_GETFL) & ~os.O_DIRECT)
            while got < BLOCK and (more := os.preadv(self.handle, [view[got:]], offset + got)):
                got += more
        return view[:got]


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def watch(folders: list[Path], mib_s: float) -> int:
    """Compare these copies until this process is ended. What is listed as damaged is reported first: it was not
    replaced before this start, as after a restart by the agents, or when another run reads the copy, too."""
    copies = []
    for folder in folders:
        try:
            copies.append(Copy(folder))
        except (OSError, ValueError) as error:
            sys.stderr.write(f"data {folder.name} is not checked: {error}\n")
    for copy in copies:
        for damage in copy.listed():
            _say(copy.folder.name, damage._asdict())
    pace = _Pace(mib_s * BLOCK)
    while any(copy.files for copy in copies):
        copy = min(copies, key=lambda one: one.began)
        if not copy.file:
            time.sleep(max(0.0, min(AGAIN_S, copy.began + AGAIN_S - time.time())))
        copy.compare(pace.took)
    return 0


def deep(project: Path) -> int:
    """Compare all copies of a project once."""
    data = project / "data"
    if data.is_symlink() or (data / SUMS).is_symlink():
        sys.stderr.write(f"{data} or its {SUMS} is a link, through which nothing is written\n")
        return 1
    copies = [path for path in sorted(data.glob("*")) if path.is_dir() and NAME.fullmatch(path.name)]
    for folder in copies:
        try:
            copy = Copy(folder)
        except (OSError, ValueError) as error:
            _say(folder.name, {"unchecked": str(error)})
            continue
        copy.compare(lambda _bytes: None, deep=True)
        _say(folder.name, {"files": len(copy.files), "bytes": sum(sums.size for sums in copy.files.values())})
    return 0


class _Pace:
    def __init__(self, bytes_s: float) -> None:
        self.bytes_s, self.next = bytes_s, time.monotonic()

    def took(self, amount: int) -> None:
        """Wait as long as so many bytes take at this rate; time in which nothing was read is not caught up."""
        self.next = max(self.next, time.monotonic()) + amount / self.bytes_s
        time.sleep(max(0.0, self.next - time.monotonic()))


def _say(data: str, values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"data": data, **values}) + "\n")
    sys.stdout.flush()


def yield_to_others() -> None:
    """Use the processor and the disk only when nothing else does, and end with the process that started this one."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if number := {"x86_64": 251, "aarch64": 30}.get(platform.machine()):
        library.syscall(number, 1, 0, 3 << 13)  # ioprio_set: this process, idle


def _read_json(path: Path) -> dict[str, Any]:
    """An object; an empty one where there is none. A run may write anything there."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _time_in(state: dict[str, Any], name: str) -> float:
    value = state.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e12 else 0.0


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file. A full disk costs what it would have held."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with aside.open("x", encoding="utf-8") as file:  # through no link
            file.write(json.dumps(content))
        aside.replace(path)
    except OSError:
        _remove(aside)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def main(argv: list[str]) -> int:
    try:
        yield_to_others()
    except OSError:  # a sandbox refuses it
        os.nice(19)
    if argv[0] == "watch":
        return watch([Path(word) for word in argv[2:]], float(argv[1]))
    return deep(Path(argv[1]).expanduser())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
