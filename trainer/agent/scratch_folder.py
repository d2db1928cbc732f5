"""Temporary folder of the ranks of an agent: their pipes, heartbeats and stacks."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

PREFIX = "orch-ranks-"
YOUNG_S = 60.0
"""Age up to which a folder is kept: its agent may be about to lock it."""


class ScratchFolder:
    """A folder that is locked while its agent lives. An agent that is killed cannot remove its own: the next one of the
    same user does."""

    def __init__(self) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # in use, of another user, or removed in the meantime
                if time.time() - path.stat().st_mtime > YOUNG_S:
                    _locked(path).close()
                    shutil.rmtree(path)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = _locked(self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _locked(folder: Path) -> IO[str]:
    """Lock a folder until the returned file is closed. BlockingIOError: another process holds the lock."""
    file = (folder / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
