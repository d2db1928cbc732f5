"""Estimate of the time that a training still takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from statistics import mean, median

FIRST_STEPS = 5
"""Steps that compile, allocate and fill caches: they do not count once others have followed."""
RECENT_STEPS = 100
"""Steps whose mean is the time of a step: shares, nodes and links change during a run."""
STALL = 4.0
"""Times the median of the recent steps: a longer step has stalled."""
FEWEST = 8
"""Steps before and after a change of speed, at least."""
LEAST_CHANGE = 0.05
"""Relative difference of two means that is a change of speed, ..."""
ERRORS, ERRORS_IF_NOTED = 5.0, 2.0
"""... and how many standard errors it is at least: there are many places to look at, or the one that was noted."""


class RemainingTime:
    """Estimated from the time of recent steps since they became faster or slower for good, and from all pauses:
    evaluations and checkpoints between steps, and the stalls within them. A first stall is an accident, and is expected
    no more; from the second on they recur."""

    def __init__(self) -> None:
        self._stalls, self._stalled_s = 0, 0.0
        """Those of steps that are not recent any more."""
        self._first: deque[float] = deque(maxlen=FIRST_STEPS)
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._usual: deque[float] = deque(maxlen=RECENT_STEPS)
        """Median of the recent steps when each of them was counted."""
        self._counted, self._paused_s = 0, 0.0
        self._changed = 0
        """Steps counted when a change of speed was noted last."""

    def step(self, seconds: float) -> None:
        """Count a step."""
        self._counted += 1
        if self._counted <= FIRST_STEPS:
            self._first.append(seconds)
            self._paused_s = 0.0
            return
        if self._counted == FIRST_STEPS + 1:  # what came before it happens once: compiling
            self._paused_s = 0.0
        usual_s = median(self._recent or [seconds])
        if len(self._recent) == RECENT_STEPS and (stalled_s := _stalled_s(self._recent[0], self._usual[0], usual_s)):
            self._stalls += 1
            self._stalled_s += stalled_s
        self._recent.append(seconds)
        self._usual.append(usual_s)

    def pause(self, seconds: float) -> None:
        """Count a pause after the last step."""
        self._paused_s += seconds

    def change(self) -> None:
        """Note that the next steps may take another time: shares of the nodes, or the code, are others."""
        self._changed = self._counted

    def estimate(self, steps_left: int) -> float | None:
        """Seconds for this many steps; None after fewer than two."""
        if self._counted < 2:
            return None
        if not self._recent:
            return steps_left * median(list(self._first)[1:])
        usual_s = median(self._recent)
        recent = [
            _stalled_s(seconds, then_s, usual_s) for seconds, then_s in zip(self._recent, self._usual, strict=True)
        ]
        stalls = self._stalls + sum(stalled_s > 0 for stalled_s in recent)
        paused_s = self._paused_s + (self._stalled_s + sum(recent) if stalls > 1 else 0.0)
        steps = [seconds - stalled_s for seconds, stalled_s in zip(self._recent, recent, strict=True)]
        step_s = mean(_alike(steps, len(steps) - (self._counted - self._changed)))
        return steps_left * (step_s + paused_s / (self._counted - FIRST_STEPS))


def _stalled_s(seconds: float, then_s: float, now_s: float) -> float:
    """Seconds that a step was longer than a usual one, if it has stalled; otherwise 0. A usual one takes `then_s` and
    `now_s`: where a run becomes slower for good, or faster, the steps before or after have not stalled."""
    usual_s = max(then_s, now_s)
    return seconds - usual_s if seconds > STALL * usual_s else 0.0


def _alike(steps: Sequence[float], noted: int) -> Sequence[float]:
    """The newest of the steps: those since the last change of their speed. `noted`: place of a change that is known."""
    number = len(steps)
    sums, squares = list(accumulate(steps, initial=0.0)), list(accumulate((one * one for one in steps), initial=0.0))
    worth, place = 1.0, 0
    for at in range(FEWEST, number - FEWEST + 1):
        before_s, after_s = sums[at] / at, (sums[-1] - sums[at]) / (number - at)
        spread = squares[-1] - at * before_s**2 - (number - at) * after_s**2
        error_s = sqrt(max(0.0, spread) / (number - 2) * (1 / at + 1 / (number - at)))
        least_s = max(LEAST_CHANGE * before_s, error_s * (ERRORS_IF_NOTED if at == noted else ERRORS))
        found = abs(after_s - before_s) / least_s if least_s else 0.0
        if found > worth:
            worth, place = found, at
    return _alike(steps[place:], noted - place) if place else steps
