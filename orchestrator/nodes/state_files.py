"""Private state files of the controller: readable by their user alone, replaced atomically."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO


def private_folder(folder: Path) -> Path:
    """The folder, made if need be; each folder that is made on the way is of mode 0700, and so is this one."""
    for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with suppress(FileExistsError):  # another process has just made it
            one.mkdir(mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def replace_file(file: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write to a temporary file, sync, rename: a reader sees the old or the new content, even after a power failure."""
    private_folder(file.parent)
    aside = file.with_name(f".{file.name}.{os.getpid()}.new")
    aside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as new:
            new.write(content.encode("utf-8") if isinstance(content, str) else content)
            new.flush()
            os.fsync(new.fileno())
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(path: Path) -> None:
    """Make a rename, or a new file, durable: it is so only once its folder is on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_private(file: Path) -> IO[bytes]:
    """A file to append to and to read, of mode 0600 if it is new."""
    private_folder(file.parent)
    return os.fdopen(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")
