"""Progress of the ranks of a node by what they print: merged from their lines, with the time left by own times.

For people alone. A program may print anything, so nothing here restarts, stops or accuses a run.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from threading import Lock

from contract.events import OutputProgress
from contract.log_lines import EVENT_MARK
from trainer.agent.output_reader import STEP_LIMIT, OutputFigures, read_figures

EVERY_S = 5.0
"""Time between two events."""
LINES_PER_S = 200
"""Lines of a rank that are read in a second: more would take the agent's time from the ranks."""
SPEED_S = 60.0
"""Time over which the speed is measured."""
LEAST_S, LEAST_UPDATES = 30.0, 5
"""Time since the first progress, and number of updates, before a time left is estimated."""
RECENT = 0.1
"""Part of the time so far over which the pace is measured."""
INNER_S = 120.0
"""A counter that has not moved for so long gives way to another, such as the bar of an evaluation within it."""
MARKS, NAMES = 1024, 64
"""Points in time, and names of losses, that are kept of a rank."""
_TOTAL = re.compile(
    r"--?(?:num[-_]?)?(?:train[-_]?)?(?P<epochs>epochs)|--?(?:max|num|total)[-_](?:train[-_])?(?P<steps>steps|iters)"
)


class OutputReader:
    """Reads the lines of a node's ranks. Its methods may be called from several threads."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        """`command` may name the number of epochs or of steps."""
        self._lock = Lock()
        self._totals = totals_of(command)
        self._ranks: dict[int | None, _RankProgress] = {}
        self._budget: dict[int | None, tuple[int, int]] = {}
        """Second, and lines that were read in it."""
        self._sent: OutputProgress | None = None
        self._sent_at = -math.inf

    def read(self, rank: int | None, text: str, now: float) -> OutputFigures:
        """Take the figures of a line into account; None: a line of a script that has no rank. Returns the figures."""
        with self._lock:
            second, number = self._budget.get(rank, (0, 0))
            self._budget[rank] = (second, number + 1) if second == int(now) else (int(now), 1)
            if text.startswith(EVENT_MARK) or (second == int(now) and number >= LINES_PER_S):
                return OutputFigures()
        figures = read_figures(text)
        if not figures.is_empty:
            with self._lock:
                self._ranks.setdefault(rank, _RankProgress(self._totals)).take(figures, now)
        return figures

    def event(self, now: float, *, last: bool = False) -> OutputProgress | None:
        """The progress of rank 0, otherwise of the lowest rank that printed any, if it has changed since the last call
        and `EVERY_S` have passed. `last`: no later call follows."""
        if now - self._sent_at < EVERY_S and not last:
            return None
        with self._lock:
            rank = min(self._ranks, key=lambda one: (one is None, one or 0), default=-1)
            event = self._ranks[rank].event(rank, now) if rank != -1 else None
        if event is None or (self._sent and _figures(event) == _figures(self._sent)):
            return None
        self._sent, self._sent_at = event, now
        return event


def _figures(event: OutputProgress) -> OutputProgress:
    """The event without what changes by time alone."""
    return replace(event, per_s=None, unit=None, remaining_s=None)


def totals_of(command: Sequence[str]) -> Mapping[str, int]:
    """Numbers of epochs and steps that the words of a command name: `--epochs 90`, `max_steps=100`."""
    found: dict[str, int] = {}
    words = [part for word in command for part in word.split("=", 1)]
    for word, value in pairwise(words):
        name = word if word.startswith("-") else f"--{word}"
        if (match := _TOTAL.fullmatch(name)) and re.fullmatch(r"[1-9][0-9]{0,11}", value):
            found.setdefault("epochs" if match["epochs"] else "steps", int(value))
    return found


class _Losses:
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


class _Counter:
    """A count of steps, by its total and the text before it."""

    def __init__(self, key: tuple[str, int | None], now: float) -> None:
        self.key = key
        self.step = -1
        self.at = now
        self.begins_again = False
        """Whether it was seen to begin again: each of its passes is a part of the training."""
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


class _RankProgress:
    """Progress of one rank."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._epoch: float | None = None
        self._epochs = totals.get("epochs")
        self._total_steps = totals.get("steps")
        self._from_zero = False
        """Whether an epoch 0 was seen."""
        self._whole_epochs = False
        """Whether epochs are counted by whole numbers: then a bar is a part of one."""
        self._epoch_done = False
        """Whether the newest epoch was reported with its loss and without a step: at its end."""
        self._several_reports = False
        """Whether epochs are reported more than once, and so not at their end."""
        self._counter: _Counter | None = None
        self._losses = _Losses()
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
            self._counter = counter = _Counter(key, now)
        counter.take(step, figures.unit, now)
        self._epoch_done &= figures.step is None

    def _is_whole(self) -> bool:
        """Whether the counter counts the whole training: it has a total, and never began again."""
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
        since = now - max(LEAST_S, RECENT * (now - self._first))
        recent = [mark for mark in self._marks if mark[0] >= since]
        recent = recent if len(recent) > LEAST_UPDATES else list(self._marks)[-LEAST_UPDATES - 1 :]
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
