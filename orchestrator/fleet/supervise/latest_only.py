"""Background work, one piece after the other: a newer piece replaces one that waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.faults import as_error
from orchestrator.specs.errors import OrchError

Work = Callable[[], object]


class LatestOnly:
    """At most one piece is at work and one waits."""

    def __init__(self, failed: Callable[[OrchError], object] = lambda _error: None) -> None:
        """`failed` receives errors, in the calling thread."""
        self._failed = failed
        self._current: Future[object] | None = None
        self._waiting: Work | None = None

    def add(self, work: Work) -> None:
        self._waiting = work
        self.look()

    def look(self) -> None:
        """Begin the waiting piece, if none is at work."""
        if self._current and self._current.done():
            self._finish()
        if self._waiting and not self._current:
            self._current, self._waiting = begin(self._waiting), None

    def finish(self, timeout_s: float) -> None:
        """Wait for both pieces, each at most so long. TimeoutError: one takes longer."""
        while self._current or self._waiting:
            self.look()
            if self._current:
                self._current.exception(timeout_s)
                self._finish()

    def _finish(self) -> None:
        ended, self._current = self._current, None
        error = ended.exception() if ended else None
        if isinstance(error, Exception):
            self._failed(as_error(error))
        elif error:
            raise error
