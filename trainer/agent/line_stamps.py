"""The time before each line of output, as Docker adds it: `2026-01-31T08:15:30.123456789Z line`."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from threading import Lock


class StampedOutput(io.RawIOBase):
    """A stream that passes on whole lines, each with its time, in one piece.

    No two lines of one `clock` have the same time: a reader continues after the last one that it has.
    """

    def __init__(self, out: io.RawIOBase, clock: Callable[[], int]) -> None:
        """`clock` returns nanoseconds since 1970."""
        self._out, self._clock = out, clock
        self._rest = b""
        self._lock = Lock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._out.fileno()

    def write(self, text) -> int:  # type: ignore[no-untyped-def]  # a buffer, whose type has a name from Python 3.12 on
        piece = bytes(text)
        with self._lock:
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self._pass_on(line + b"\n")
        return len(piece)

    def close(self) -> None:
        if self._rest:
            self._pass_on(self._rest + b"\n")
            self._rest = b""
        super().close()

    def _pass_on(self, line: bytes) -> None:
        left = memoryview(f"{rfc_3339(self._clock())} ".encode() + line)
        while left:
            left = left[self._out.write(left) or 0 :]


class RisingClock:
    """Return the time of this machine, never the same one twice."""

    def __init__(self, now: Callable[[], int] = time.time_ns) -> None:
        self._now = now
        self._last = 0
        self._lock = Lock()

    def __call__(self) -> int:
        with self._lock:
            self._last = max(self._now(), self._last + 1)
            return self._last


def rfc_3339(time_ns: int) -> str:
    """A time in UTC to the nanosecond."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def stamp_output() -> None:
    """Stamp all that this process writes from now on; processes that it starts write through pipes that it reads."""
    clock = RisingClock()
    for name in ("stdout", "stderr"):
        getattr(sys, name).flush()
        raw = io.FileIO(getattr(sys, name).fileno(), "w", closefd=False)
        buffer = io.BufferedWriter(StampedOutput(raw, clock))
        setattr(sys, name, io.TextIOWrapper(buffer, "utf-8", errors="replace", line_buffering=True))
