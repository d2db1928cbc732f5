"""Watches over each step's loss: what is not a number, and what jumps, is named and answered."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

WINDOW = 64
"""Losses that the running median is taken of."""
ENOUGH = 16
"""Losses needed before anything counts as a spike: the first steps fall steeply and jump about."""
SKIPS_IN_A_ROW = 10
"""Number of skips after which it is no longer a bad batch, but a bad run."""

Action = Literal["continue", "skip", "stop"]


@dataclass(frozen=True, kw_only=True)
class LossVerdict:
    action: Action
    message: str = ""
    """Text for people; empty if there is none."""


class Guard:
    """Judges every step's loss, which is the same on all ranks: so all ranks decide the same without asking."""

    def __init__(
        self,
        *,
        on_nan: Literal["stop", "skip"] = "stop",
        on_spike: Literal["warn", "skip", "stop", "off"] = "warn",
        factor: float = 3.0,
    ) -> None:
        """`factor`: a loss above this many times the running median is a spike."""
        self.on_nan = on_nan
        self.on_spike = on_spike
        self.factor = factor
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._skipped = 0

    def judge(
        self, step: int, loss: float, at_fault: Sequence[int] = (), gradient_norm: float | None = None
    ) -> LossVerdict:
        """Judge a step before the optimizer's. `at_fault`: ranks whose own loss is not finite (see `ranks_at_fault`);
        `gradient_norm`: None where float16 is scaled, as the scaler answers infinities itself."""
        if not math.isfinite(loss):
            what = f"the loss is {loss} at step {step}{_on(at_fault)}"
            return self._answer(self.on_nan, what, "a smaller --lr or --clip, --no-amp (float32), or --on-nan skip")
        if gradient_norm is not None and not math.isfinite(gradient_norm):
            what = f"the gradient is {gradient_norm} at step {step}, where the loss is {loss:.4g}"
            return self._answer(self.on_nan, what, "a smaller --lr, --no-amp (float32), or --on-nan skip")
        if self.on_spike != "off" and len(self._losses) >= ENOUGH:
            usual = median(self._losses)
            if loss > self.factor * usual > 0:
                what = f"the loss is {loss:.4g} at step {step}, {loss / usual:.1f} times the usual {usual:.4g}"
                verdict = self._answer(self.on_spike, what, "a smaller --lr or --clip, a longer --warmup-steps")
                if verdict.action == "continue":
                    self._losses.append(loss)
                return verdict
        self._losses.append(loss)
        self._skipped = 0
        return LossVerdict(action="continue")

    def _answer(self, wish: str, what: str, advice: str) -> LossVerdict:
        if wish == "warn":
            self._skipped = 0
            return LossVerdict(action="continue", message=f"{what}; if it stays: {advice}")
        if wish == "stop":
            return LossVerdict(action="stop", message=f"{what}: try {advice}")
        self._skipped += 1
        if self._skipped >= SKIPS_IN_A_ROW:
            what = f"{what}, the {self._skipped}th update in a row to be skipped"
            return LossVerdict(action="stop", message=f"{what}: try {advice}")
        return LossVerdict(action="skip", message=f"{what}; this update is skipped ({self._skipped} in a row)")

    def state(self) -> dict[str, Any]:
        """Plain numbers for a checkpoint: a resumed run judges as the uninterrupted one would have."""
        return {"losses": list(self._losses), "skipped": self._skipped}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._losses = deque(state["losses"], maxlen=WINDOW)
        self._skipped = int(state["skipped"])


def finite_flags(rank: int, world_size: int, local_loss: float) -> list[float]:
    """Flags by rank, added to the step's one all-reduce, so that afterwards all ranks know which are at fault."""
    return [float(other == rank and not math.isfinite(local_loss)) for other in range(world_size)]


def ranks_at_fault(summed_flags: Sequence[float]) -> list[int]:
    return [rank for rank, flag in enumerate(summed_flags) if flag > 0]


def _on(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f" on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
