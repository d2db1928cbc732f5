"""Files that are whole or not there: what a power cut must not leave half written."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_atomic(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, also after a crash in the middle."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename lasts only once its folder is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def failed_with(error: BaseException | None, *numbers: int) -> int:
    """Which of these error numbers is behind it, 0 for none: where a disk is full, torch's writer raises an error of
    its own, that its file ends in the wrong place, and the disk's stands behind that."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return error.errno
        error = error.__cause__ or error.__context__
    return 0


def no_room(error: BaseException) -> str:
    """The system's message for a full disk or quota; empty for any other error."""
    number = failed_with(error, errno.ENOSPC, errno.EDQUOT)
    return os.strerror(number) if number else ""
