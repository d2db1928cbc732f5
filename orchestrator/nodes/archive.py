"""Files and folders as a tar stream, for every kind of connection."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import (
        tarfile,
    )  # Pythons before 3.10.12 and 3.11.4, Debian 12's too, have no filter for what they unpack

TarError = tarfile.TarError
CHUNK = 1024 * 1024


def pack(source: Path, *, name: str = ".", only: Sequence[str] | None = None) -> Iterator[bytes]:
    """Pack a file (as `name`), or the contents of a folder, as chunks of a tar archive. Memory stays flat.

    `only`: paths in the folder, links as links; None: all of them, with `outside_file` as content.
    """
    inside = sorted(source.rglob("*")) if only is None else [source / path for path in only]
    for path in inside if source.is_dir() else [source.resolve()]:
        content = only is None and outside_file(path, source)
        info = _header(content or path, str(path.relative_to(source)) if source.is_dir() else name)
        yield info.tobuf(tarfile.PAX_FORMAT)
        if info.isreg():
            yield from _content(path, info.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def outside_file(path: Path, folder: Path) -> Path | None:
    """The file that a link in the folder leads to, if a copy of the folder would lead elsewhere: by an absolute path,
    or out of the folder."""
    if not path.is_symlink() or not path.is_file():
        return None
    to, file = path.readlink(), path.resolve()
    depths = accumulate(
        (-1 if part == ".." else 1 for part in to.parts), initial=len(path.relative_to(folder).parts) - 1
    )
    stays = not to.is_absolute() and min(depths) >= 0 and file.is_relative_to(folder.resolve())
    return None if stays else file


def _header(path: Path, name: str) -> tarfile.TarInfo:
    """Name, kind, size and mode; the receiver decides on the owner."""
    stat = path.lstat()
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.st_mode & 0o7777, int(stat.st_mtime)
    if path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
    else:
        info.size = stat.st_size
    return info


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes (a file that shrinks or grows meanwhile must not shift what follows), then the padding."""
    left = size
    with path.open("rb") as content:
        while left and (chunk := content.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
    yield bytes(left + -size % tarfile.BLOCKSIZE)


def unpack(stream: BinaryIO, target: Path) -> None:
    """Unpack into a folder. The archive comes from another machine: `data` refuses what leaves the folder."""
    target.mkdir(parents=True, exist_ok=True)
    with as_tar_error(), tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(target, filter="data")


@contextmanager
def as_tar_error() -> Iterator[None]:
    """Every error of `tarfile` for what it reads as a TarError; numbers, names and nested headers may be anything."""
    try:
        yield
    except (ValueError, LookupError, ArithmeticError, RecursionError, TypeError) as error:
        raise TarError(f"it is no tar archive: {type(error).__name__}") from error
