"""Progress of the ranks of a node by what they print: merged from their lines, with the time left by own times.

For people alone. A program may print anything, so nothing here restarts, stops or accuses a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from threading import Lock

from contract.events import OutputProgress
from contract.log_lines import EVENT_MARK
from trainer.agent.output_reader import OutputFigures, read_figures
from trainer.agent.rank_progress import RankProgress

EVERY_S, FIRST_EVERY_S, FIRST_S = 5.0, 1.0, 60.0
"""Time between two events; between those of the first minute, in which a short run would otherwise show none."""
LINES_PER_S = 200
"""Lines of a rank that are read in a second: more would take the agent's time from the ranks."""
_TOTAL = re.compile(
    r"--?(?:num[-_]?)?(?:train[-_]?)?(?P<epochs>epochs)|--?(?:max|num|total)[-_](?:train[-_])?(?P<steps>steps|iters)"
)


class OutputReader:
    """Reads the lines of a node's ranks. Its methods may be called from several threads."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        """`command` may name the number of epochs or of steps."""
        self._lock = Lock()
        self._totals = totals_of(command)
        self._ranks: dict[int | None, RankProgress] = {}
        self._budget: dict[int | None, tuple[int, int]] = {}
        """Second, and lines that were read in it."""
        self._sent: OutputProgress | None = None
        self._first_at = math.inf
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
                self._ranks.setdefault(rank, RankProgress(self._totals)).take(figures, now)
        return figures

    def event(self, now: float, *, last: bool = False) -> OutputProgress | None:
        """The progress of rank 0, otherwise of the lowest rank that printed any, if it has changed since the last
        event and `EVERY_S` have passed, `FIRST_EVERY_S` at first. `last`: no later call follows."""
        every_s = FIRST_EVERY_S if now - self._first_at < FIRST_S else EVERY_S
        if now - self._sent_at < every_s and not last:
            return None
        with self._lock:
            rank = min(self._ranks, key=lambda one: (one is None, one or 0), default=-1)
            event = self._ranks[rank].event(rank, now) if rank != -1 else None
        if event is None or (self._sent and _figures(event) == _figures(self._sent)):
            return None
        self._sent, self._sent_at, self._first_at = event, now, min(now, self._first_at)
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
