"""Estimate of the time that a training still takes."""

from __future__ import annotations

from collections import deque
from statistics import mean, median

FIRST_STEPS = 5
"""Steps that compile, allocate and fill caches: they do not count once others have followed."""
RECENT_STEPS = 100
"""Steps whose mean is the time of a step: shares, nodes and links change during a run."""


class RemainingTime:
    """Estimated from the time of recent steps, and from all pauses between steps: evaluations and checkpoints."""

    def __init__(self) -> None:
        self._first: deque[float] = deque(maxlen=FIRST_STEPS)
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._counted, self._paused_s = 0, 0.0

    def step(self, seconds: float) -> None:
        """Count a step."""
        self._counted += 1
        if self._counted <= FIRST_STEPS:
            self._first.append(seconds)
            self._paused_s = 0.0
            return
        if self._counted == FIRST_STEPS + 1:  # what came before it happens once: compiling
            self._paused_s = 0.0
        self._recent.append(seconds)

    def pause(self, seconds: float) -> None:
        """Count a pause after the last step."""
        self._paused_s += seconds

    def estimate(self, steps_left: int) -> float | None:
        """Seconds for this many steps; None after fewer than two."""
        if self._counted < 2:
            return None
        if not self._recent:
            return steps_left * median(list(self._first)[1:])
        return steps_left * (mean(self._recent) + self._paused_s / (self._counted - FIRST_STEPS))
