"""Lines on their way out of a container. Who takes them may be slow, or gone: the engine, its log, a disk."""

from __future__ import annotations

import contextlib
from queue import SimpleQueue
from threading import Lock, Thread
from typing import IO


class Voice:
    """Of a supervisor and its ranks: whole lines, whoever writes."""

    def __init__(self, out: IO[bytes]) -> None:
        """`out`: for the supervisor's own lines."""
        self._out = out
        self._lock = Lock()
        self._own: SimpleQueue[bytes] = SimpleQueue()
        self._speaker = Thread(target=self._speak, daemon=True)
        self._speaker.start()

    def say(self, line: bytes) -> None:
        """A line of the supervisor's own. It never waits: others count on its word."""
        self._own.put(line)

    def pass_on(self, out: IO[bytes], line: bytes) -> None:
        """A line of a rank's; returns when it is taken. One that cannot be written is lost, the rank goes on."""
        with self._lock, contextlib.suppress(OSError):
            out.write(line)
            out.flush()

    def end(self, patience_s: float) -> None:
        """Once all that was said is out, or nobody has taken it for so long."""
        self._own.put(b"")
        self._speaker.join(patience_s)

    def _speak(self) -> None:
        while line := self._own.get():
            self.pass_on(self._out, line)
