"""A thread that writes while the training continues. An error in it is raised where the training asks for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Writer:
    """Thread that executes its calls one after another."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")  # begins with the first that is given
        self._going: deque[Future[Any]] = deque()

    def submit(self, write: Callable[[], T]) -> Future[T]:
        future = self._thread.submit(write)
        self._going.append(future)
        return future

    def poll(self) -> None:
        """Raise the error of a write that has failed so far."""
        while self._going and self._going[0].done():
            self._going.popleft().result()

    def finish(self) -> None:
        """Wait until all is done; raise what has failed."""
        while self._going:
            self._going.popleft().result()

    def close(self, patience_s: float) -> None:
        """Wait for what is being written, at the end of a training, also of one that failed."""
        wait(self._going, patience_s)
        self._thread.shutdown(wait=False, cancel_futures=True)
