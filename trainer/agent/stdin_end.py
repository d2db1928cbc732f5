"""The end of standard input, or of the parent process, as a request to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from threading import Thread

PARENT_S = 1.0
"""Seconds between two looks at the parent."""


class StdinEnd:
    """The end of standard input, or of the parent.

    The program that holds the other end (`docker run --interactive`, `srun`) may be killed, and can then pass on no
    signal: without this a container outlives the job that started it. The same holds for a process and the slurmstepd
    that started it.
    """

    def __init__(self) -> None:
        self.at: float | None = None
        """Time of the end by the monotonic clock; None: it has not come, or is not watched."""

    def watch(self) -> None:
        """Send this process a SIGTERM at the end."""
        Thread(target=self._watch, daemon=True, name="stdin").start()

    def watch_parent(self) -> None:
        """Send this process a SIGTERM when the process that started it has ended."""
        Thread(target=self._watch_parent, args=(os.getppid(),), daemon=True, name="parent").start()

    def _watch_parent(self, parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_S)
        self._end()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # closed, or a terminal that is gone: the end, too
            while os.read(0, 4096):
                pass
        self._end()

    def _end(self) -> None:
        self.at = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)  # its handler runs in the main thread
