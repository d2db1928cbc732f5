"""Rates of the ranks of a node over the last minute: optimizer steps per second, and collectives of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.liveness import FIRST_STEP
from contract.rank_signs import RankSigns

WINDOW_S = 60.0
LEAST_S, LEAST_STEPS = 5.0, 5
"""Time before a speed is known; steps before the collectives per step are."""


@dataclass(frozen=True, kw_only=True)
class RankRate:
    """Rates of one rank; None: not known yet."""

    steps_per_s: float | None = None
    collectives_per_step: float | None = None


class RankRates:
    """Counts the optimizer steps and collectives of ranks. Steps up to the fifth are left out, as they compile."""

    def __init__(self) -> None:
        self._marks: dict[int, deque[tuple[float, int, int]]] = {}
        """Time, steps and collectives at each look, by process: a rank may be started again."""
        self.by_rank: Mapping[int, RankRate] = {}

    def take(self, signs: Sequence[RankSigns], now: float) -> None:
        """Note the signs of one look."""
        before, self._marks = self._marks, {}
        rates = dict[int, RankRate]()
        for one in signs:
            if one.optimizer_steps >= FIRST_STEP and not one.left_out:
                marks = self._marks[one.process] = before.get(one.process, deque())
                marks.append((now, one.optimizer_steps, one.completed))
                while now - marks[0][0] > WINDOW_S and len(marks) > 2:
                    marks.popleft()
                rates[one.rank] = _rate(*marks[0], *marks[-1])
        self.by_rank = rates


def _rate(began: float, steps: int, collectives: int, now: float, all_steps: int, all_collectives: int) -> RankRate:
    seconds, made = now - began, all_steps - steps
    return RankRate(
        steps_per_s=round(made / seconds, 3) if seconds >= LEAST_S else None,
        collectives_per_step=round((all_collectives - collectives) / made, 2) if made >= LEAST_STEPS else None,
    )
