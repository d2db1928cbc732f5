"""Counts that the lines of a rank add up to: the loss of its training, and its steps."""

from __future__ import annotations

import math
from collections import deque

from trainer.agent.output_reader import OutputFigures

SPEED_S = 60.0
"""Time over which the speed is measured."""
MARKS, NAMES = 1024, 64
"""Maximum number of times, and of names of losses, that are stored for a rank."""


class LossCount:
    """The loss of the training, among those that a program prints."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._class = 0
        self._in_succession = 0
        """Losses since the last finite one."""
        self._since: int | None = None
        self.key = ""
        self.value: float | None = None
        self.not_finite = ""
        self.not_finite_since: int | None = None

    def take(self, figures: OutputFigures, step: int | None) -> None:
        """A loss counts once its name was seen twice: a single number may be a setting."""
        loss, key = figures.loss, figures.loss_key
        if loss is None or (key not in self._seen and len(self._seen) >= NAMES):
            return
        self._seen[key] = self._seen.get(key, 0) + 1
        if self.key and key != self.key and figures.loss_class > self._class:
            return  # a part of the loss that is shown
        self._in_succession = 0 if math.isfinite(loss) else self._in_succession + 1
        if self._in_succession == 1:
            self._since = step
        if self._seen[key] < 2:
            return
        self.key, self._class = key, figures.loss_class
        if not self._in_succession:
            self.value, self.not_finite, self.not_finite_since = loss, "", None
        elif self._in_succession > 1:
            self.value, self.not_finite_since = None, self._since
            self.not_finite = "nan" if math.isnan(loss) else "inf"


class StepCount:
    """A count of steps, by its total and the text before it."""

    def __init__(self, key: tuple[str, int | None], now: float) -> None:
        self.key = key
        self.step = -1
        self.at = now
        self.begins_again = False
        """True if it was seen to begin again: each of its passes is a part of the training."""
        self.unit = ""
        self.marks: deque[tuple[float, int]] = deque(maxlen=MARKS)

    def take(self, step: int, unit: str, now: float) -> None:
        if step < self.step:
            self.begins_again = True
            self.marks.clear()
        if step != self.step and (not self.marks or now - self.marks[-1][0] >= SPEED_S / MARKS):
            self.marks.append((now, step))
        self.step, self.at, self.unit = step, now, unit

    @property
    def is_complete(self) -> bool:
        return self.key[1] is not None and self.step >= self.key[1]

    def per_s(self, now: float) -> float | None:
        """Steps per second of the last minute."""
        recent = [mark for mark in self.marks if now - mark[0] <= SPEED_S]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < 1.0:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])
