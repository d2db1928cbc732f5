"""One recorder per run and computer: the process that reads the nodes' lines, which all others read from the store.

The lock is the kernel's and ends with the process. Its file holds who has it, and changes with each sign of life: a
process that is stopped keeps its lock. Two computers that share the folder have one recorder, by the lock where the
file system carries it to the other one, otherwise by the signs of life.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from orchestrator.nodes.state_files import private_folder

NAME = "recorder.lock"
BEAT_S, SILENT_S = 1.0, 5.0
"""Seconds between two signs of life, and without one until a recorder counts as stopped."""
_LONGEST = 200
"""Characters that are read of the file."""


class RecorderLock:
    """The right to record a run, as this process has it or sees it."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic, host: str = "") -> None:
        self._path, self._clock, self._host = folder / NAME, clock, host or platform.node()
        self._descriptor, self._beats = -1, 0
        self._sign, self._sign_at = "", clock()

    @property
    def is_held(self) -> bool:
        """True if this process records."""
        return self._descriptor >= 0

    def take(self) -> bool:
        """Become the recorder unless there is one. True as well where there can be no lock: the disk is full."""
        if self.is_held:
            return True
        try:
            private_folder(self._path.parent)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return True
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except OSError:
            os.close(descriptor)
            self._look()
            return False
        host, sign = self._look()
        if host not in ("", self._host) and self._clock() - self._sign_at < SILENT_S and sign:
            os.close(descriptor)  # of another computer, whose lock does not reach this one
            return False
        self._descriptor = descriptor
        self.beat()
        return True

    def beat(self) -> None:
        """Give a sign of life."""
        if self.is_held:
            self._beats += 1
            with suppress(OSError):  # a full disk: the file has its bytes already
                content = f"{self._host} {os.getpid()} {self._beats}\n".encode("utf-8", "replace")
                os.pwrite(self._descriptor, content.ljust(_LONGEST // 2), 0)

    def release(self) -> None:
        if self.is_held:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> RecorderLock:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.release()

    def silent_recorder(self) -> str:
        """Process and computer of a recorder that has given no sign of life for a while; empty: there is none."""
        host, sign = self._look()
        if self.is_held or not sign or self._clock() - self._sign_at < SILENT_S:
            return ""
        return f"process {sign.split()[1]} of {host}"

    def _look(self) -> tuple[str, str]:
        """The computer of the recorder, and its newest sign of life; note when that changed, by the own clock."""
        sign = ""
        with suppress(OSError):
            words = self._path.read_bytes()[:_LONGEST].decode("utf-8", "replace").split()
            sign = " ".join(words) if len(words) == 3 else ""
        if sign != self._sign:
            self._sign, self._sign_at = sign, self._clock()
        return sign.partition(" ")[0], sign
