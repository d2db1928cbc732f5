"""Files that are written whole or not at all, also through a power cut; their hashes."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Values of linux/fcntl.h and linux/fs.h."""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def files_in(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders, sorted, except hidden ones."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def by_name_hash(files: Iterable[Path], folder: Path) -> list[Path]:
    """Sort by the hash of each file's name in `folder`: a pseudo-random order that depends on the names alone."""
    return sorted(files, key=lambda file: hashlib.sha256(str(file.relative_to(folder)).encode()).digest())


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file; readers find the old content or the new one, also after a crash."""
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


def exchange(first: Path, second: Path) -> None:
    """Exchange two names in one step, as renameat2(2) does. OSError: this system or file system cannot; nothing has
    changed."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def sync_folder(folder: Path) -> None:
    """Make a rename durable: it is so only once its folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_permitted(error: OSError) -> str:
    """The message for a file that this process may not use, with the owner of its folder; empty for another error."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not error.filename:
        return ""
    file = Path.cwd() / os.fsdecode(error.filename)
    folder = next((place for place in file.parents if os.path.isdir(place)), Path("/"))  # noqa: PTH112  # never raises
    about = folder.stat()
    return (
        f"{file}: {os.strerror(error.errno)}: this process is user {os.getuid()}:{os.getgid()}, and {folder} belongs"
        f" to {about.st_uid}:{about.st_gid}; with docker compose: export ORCH_UID=$(id -u) ORCH_GID=$(id -g)"
    )


def no_room(error: BaseException) -> str:
    """The system's message for a full disk or quota; empty for any other error. There torch's writer raises an error of
    its own, about the wrong end of its file, with the disk's as its cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return ""
