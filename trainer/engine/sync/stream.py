"""A thread for what the training should not wait for, on a GPU with a CUDA stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Work that was given to a stream."""

    future: Future[torch.cuda.Event | None]

    def result(self) -> None:
        """Wait until it is done; on a GPU, what is computed from here on comes after it. Raises what it raised."""
        done = self.future.result()
        if done is not None:
            done.wait()


class Stream:
    """Queue that does one thing after another."""

    def __init__(self, device: torch.device) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        # A new thread's CUDA stream is everybody's default one: what it waits for there, all would wait for.
        self._cuda = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's

    def close(self) -> None:
        self._thread.shutdown()

    def submit(self, work: Callable[[], None]) -> Sent:
        """Submit work; on a GPU it begins when what is queued there so far is computed."""
        ready = torch.cuda.current_stream(self._cuda.device).record_event() if self._cuda else None
        return Sent(future=self._thread.submit(self._run, work, ready))

    @torch.no_grad()
    def _run(self, work: Callable[[], None], ready: torch.cuda.Event | None) -> torch.cuda.Event | None:
        if self._cuda is None or ready is None:
            work()
            return None
        with torch.cuda.stream(self._cuda):
            ready.wait()
            work()
            done: torch.cuda.Event = self._cuda.record_event()
            return done
