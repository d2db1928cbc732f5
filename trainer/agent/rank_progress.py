"""Progress of one rank, merged from the figures of its lines, with the time left by their own times."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from contract.events import OutputProgress
from trainer.agent.output_counts import MARKS, LossCount, StepCount
from trainer.agent.output_reader import STEP_LIMIT, OutputFigures

LEAST_S, LEAST_UPDATES = 2.0, 3
"""Time since the first progress, and number of updates, before a time left is estimated."""
RECENT, RECENT_S, RECENT_UPDATES = 0.1, 30.0, 5
"""Fraction of the time so far over which the speed is measured, and the least seconds and updates of it."""
INNER_S = 120.0
"""A counter that has not moved for so long gives way to another, such as the bar of an evaluation within it."""


class RankProgress:
    """Progress of one rank."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._epoch: float | None = None
        self._epochs = totals.get("epochs")
        self._total_steps = totals.get("steps")
        self._from_zero = False
        """True if an epoch 0 was seen."""
        self._whole_epochs = False
        """True if epochs are counted by whole numbers: then a bar is a part of one."""
        self._epoch_done = False
        """True if the newest epoch was reported with its loss and without a step: at its end."""
        self._several_reports = False
        """True if epochs are reported more than once, and so not at their end."""
        self._counter: StepCount | None = None
        self._losses = LossCount()
        self._marks: deque[tuple[float, float]] = deque(maxlen=MARKS)
        """Time and part of the training, each time it has grown."""
        self._first = 0.0
        self._updates = 0

    def take(self, figures: OutputFigures, now: float) -> None:
        self._epochs = figures.epochs or self._epochs
        if figures.step is None and figures.steps and not figures.bar:
            self._total_steps = figures.steps
        if figures.epoch is not None:
            self._take_epoch(figures, figures.epoch)
        if figures.step is not None and figures.step <= STEP_LIMIT:
            self._take_step(figures, figures.step, now)
        self._losses.take(figures, self._counter.step if self._counter else None)
        self._mark(self._done(), now)

    def _mark(self, done: float | None, now: float) -> None:
        """Note the part of the training that is done, where it has grown."""
        if done is None or (self._marks and done < self._marks[-1][1]):  # another training of the same program
            self._marks.clear()
            self._updates = 0
        if done is None or (self._marks and done == self._marks[-1][1]):
            return
        if not self._marks:
            self._first = now
        self._updates += 1
        if not self._marks or now - self._marks[-1][0] >= max(0.5, (now - self._first) / MARKS):
            self._marks.append((now, done))

    def _take_epoch(self, figures: OutputFigures, epoch: float) -> None:
        if self._epoch is not None and epoch != self._epoch and not figures.fraction_of_epoch and figures.step is None:
            self._counter = self._counter if self._is_whole() else None
        self._from_zero |= epoch == 0
        self._whole_epochs |= not figures.fraction_of_epoch
        ends = figures.loss is not None and figures.step is None
        self._several_reports |= ends and self._epoch_done and epoch == self._epoch
        self._epoch_done = ends and not self._several_reports
        self._epoch = epoch

    def _take_step(self, figures: OutputFigures, step: int, now: float) -> None:
        key, counter = (figures.before, figures.steps), self._counter
        if counter and counter.key != key and not counter.is_complete and now - counter.at < INNER_S:
            same_name = counter.key[0] == key[0] and figures.epoch is not None
            if not same_name:  # a bar within this one, or steps that are printed beside it
                return
        if counter is None or counter.key != key:
            self._counter = counter = StepCount(key, now)
        counter.take(step, figures.unit, now)
        self._epoch_done &= figures.step is None

    def _is_whole(self) -> bool:
        """Return whether the counter counts the whole training: it has a total, and never began again."""
        counter = self._counter
        return counter is not None and self._steps() is not None and not counter.begins_again and not self._whole_epochs

    def _steps(self) -> int | None:
        counter = self._counter
        if counter is None or counter.key[1] is not None:
            return counter.key[1] if counter else None
        total = self._total_steps
        return total if total and counter.unit and counter.step <= total else None

    def _done(self) -> float | None:
        """Part of the training that is done, from 0 to 1; None: not known."""
        steps = self._steps()
        if self._counter and steps and self._is_whole():
            return min(1.0, self._counter.step / steps)
        if self._epoch is None or not self._epochs:
            return None
        if not self._whole_epochs:
            return min(1.0, self._epoch / self._epochs)
        within = min(1.0, self._counter.step / steps) if self._counter and steps else float(self._epoch_done)
        before = self._epoch if self._from_zero else self._epoch - 1
        return max(0.0, min(1.0, (before + within) / self._epochs))

    def _remaining_s(self, now: float) -> float | None:
        if not self._marks or self._updates < LEAST_UPDATES or now - self._first < LEAST_S:
            return None
        last_at, last = self._marks[-1]
        since = now - max(RECENT_S, RECENT * (now - self._first))
        recent = [mark for mark in self._marks if mark[0] >= since]
        recent = recent if len(recent) > RECENT_UPDATES else list(self._marks)[-RECENT_UPDATES - 1 :]
        (at, done), elapsed = recent[0], last_at - recent[0][0]
        if elapsed <= 0 or last <= done or at == last_at:
            return None
        return max(0.0, (1.0 - last) * elapsed / (last - done) - (now - last_at))

    def event(self, rank: int | None, now: float) -> OutputProgress | None:
        counter, losses = self._counter, self._losses
        if self._epoch is None and counter is None and losses.value is None and not losses.not_finite:
            return None
        per_s = counter.per_s(now) if counter and counter.unit else None
        return OutputProgress(
            rank=rank,
            epoch=self._epoch,
            epochs=self._epochs,
            step=counter.step if counter else None,
            steps=self._steps(),
            loss=losses.value,
            loss_key=losses.key or None,
            not_finite=losses.not_finite or None,
            not_finite_since=losses.not_finite_since,
            per_s=per_s,
            unit=counter.unit if counter and per_s is not None else None,
            remaining_s=self._remaining_s(now),
        )
