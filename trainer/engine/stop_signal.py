"""A wish to stop, by SIGTERM or SIGINT. The loop asks for it; neither a signal before the first step nor another one,
5 s later, waits for the loop."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGTERM, signal.SIGINT)
ONE_WISH_S = 5.0
"""Signals within this time are one: torchrun passes on what a scheduler has sent to every process itself."""


class StopSignal:
    """Python's handlers run in the main thread between two bytecodes: never while it waits in a collective
    whose peer is gone. So a thread of our own reads them from the pipe that the C handler writes to."""

    def __init__(self, one_wish_s: float = ONE_WISH_S) -> None:
        self.asked = False
        self.answers = False
        """True if this process answers a request itself: the loop, which has a step to save, or a rank that is left out
        and must not be gone before the others have saved theirs. Before, a signal ends the process at once: there is
        nothing to save, and the start may wait in a collective for a rank that never comes."""
        self._one_wish_s = one_wish_s
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_descriptor = -1
        self._pipe = (-1, -1)

    def __enter__(self) -> StopSignal:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._previous_descriptor = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in WATCHED:
            self._previous[number] = signal.signal(number, _leave_it_to_the_thread)
        threading.Thread(target=self._watch, args=(self._pipe[0],), daemon=True, name="stop-signal").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_descriptor)
        os.close(self._pipe[1])  # the thread reads the end of the pipe, and ends

    def _watch(self, descriptor: int) -> None:
        first_asked = 0.0
        while received := os.read(descriptor, 1):
            if received[0] in WATCHED:
                now = time.monotonic()
                if not self.answers or (self.asked and now - first_asked > self._one_wish_s):
                    os._exit(128 + received[0])
                first_asked = first_asked or now
                self.asked = True
        os.close(descriptor)


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    """A Python handler must be set for the C handler to write to the pipe."""
