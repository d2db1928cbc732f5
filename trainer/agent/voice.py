"""Lines on their way out of a container. Who takes them may be slow, or gone: the engine, its log, a disk."""

from __future__ import annotations

import contextlib
import time
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import IO

MOST = 1000
"""Lines that wait; more are lost, and counted."""
QUIET_S = 60.0
"""Between two notes of one kind."""


class LogWriter:
    """Of a agent and its ranks: whole lines, whoever writes."""

    def __init__(self, out: IO[bytes]) -> None:
        """`out`: for the agent's own lines."""
        self._out = out
        self._lock = Lock()
        self._own: Queue[bytes] = Queue(MOST)
        self._lost = 0
        self._noted: dict[str, tuple[float, int]] = {}
        """When a kind was noted last, and how often since."""
        self._speaker = Thread(target=self._speak, daemon=True)
        self._speaker.start()

    def say(self, line: bytes) -> None:
        """A line of the agent's own. It never waits: others count on its word."""
        try:
            self._own.put_nowait(line)
        except Full:
            self._lost += 1

    def note(self, kind: str, text: str) -> None:
        """A line for people about what may come in any number: the first of its kind, then one a minute."""
        now = time.monotonic()
        at, more = self._noted.get(kind, (-QUIET_S, 0))
        if now - at < QUIET_S:
            self._noted[kind] = at, more + 1
            return
        self._noted[kind] = now, 0
        again = f" ({more} more since the last such line)" if more else ""
        self.say(f"{text}{again}\n".encode(errors="replace"))

    def pass_on(self, out: IO[bytes], line: bytes) -> None:
        """A line of a rank's; returns when it is taken. One that cannot be written is lost, the rank goes on."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            out.write(line)
            out.flush()

    def end(self, patience_s: float) -> None:
        """Once all that was said is out, or nobody has taken it for so long."""
        while self._own.full():  # nobody takes them: the end is worth more than the oldest
            with contextlib.suppress(Empty):
                self._own.get_nowait()
                self._lost += 1
        self.say(b"")
        self._speaker.join(patience_s)

    def _speak(self) -> None:
        while line := self._own.get():
            self.pass_on(self._out, line)
            if lost := self._lost:
                self._lost -= lost
                self.pass_on(self._out, f"{lost} lines of this node's agent were lost: nobody took them\n".encode())
