"""Progress of the user's own script: heartbeat, events, lines for people, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from contract.cost_model.units import duration
from contract.events import StepDone
from trainer.agent import heartbeat
from trainer.config import RankInfo
from trainer.engine.reporting.events import Events
from trainer.engine.reporting.remaining_time import RemainingTime
from trainer.engine.reporting.reporters import Reporters, TrainingBegun

EVERY_S = 1.0
"""Seconds between two reports, at least: a tensor's value is read only for a report, as that waits for a GPU."""
TAKEN = {"event", "kind", *(one.name for one in fields(StepDone))} - {"loss", "per_s"}
"""Names that mean something else in an event or in metrics.jsonl: a user's figure gets a `_` behind it."""


class StepReporter:
    """Reports the optimizer steps of this rank: every rank its heartbeat, rank 0 the figures."""

    def __init__(
        self, environ: Mapping[str, str], out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._environ = RankInfo.from_environ(environ), environ
        self._events = Events(self._place, out)
        self._clock = clock
        self._reporters: Reporters | None = None
        self._reported: float | None = None
        """Time of the last report; None before the first."""
        self._units = 0.0
        self._remaining, self._before = RemainingTime(), clock()
        self.last: int | None = None
        """Number of the last step."""

    def step(
        self, number: int, figures: Mapping[str, Any], samples: float | None = None, total: int | None = None
    ) -> None:
        """Note that a step is done. `figures`: numbers or tensors of one value; `samples`: of all ranks in it; `total`:
        number of the last step."""
        if self.last is None:  # not before: a script that reports no steps would seem to make no progress
            heartbeat.begin(self._environ)
        self.last = number
        heartbeat.step(number)
        heartbeat.part("step")
        if self._place.rank:
            return
        self._units += 1 if samples is None else samples
        now = self._clock()
        self._remaining.step(now - self._before)
        self._before = now
        if self._reported is not None and now - self._reported < EVERY_S:
            return
        unit = "steps" if samples is None else "samples"
        values = {f"{name}_" if name in TAKEN else name: _number(value) for name, value in figures.items()}
        if self._reported is not None:  # the first step has begun at a time that is not known
            values["per_s"] = self._units / (now - self._reported)
        self._report(number, values, unit, total, ended_at=time.time())  # with its figures, a GPU has computed the step
        self._reported, self._units = now, 0.0

    def checkpointed(self) -> None:
        """Note that the rank is not training but writing or reading a checkpoint."""
        heartbeat.part("checkpoint")

    def close(self) -> None:
        """Close at the end of the program."""
        if self._reporters is not None:
            self._reporters.end("done")

    def _report(self, number: int, values: dict[str, float], unit: str, total: int | None, *, ended_at: float) -> None:
        if self._reporters is None:
            begun = TrainingBegun(
                run_id=self._place.run_id, run_dir=Path(self._place.run_dir), first_step=number, final_step=total
            )
            self._reporters = Reporters(begun)
        self._reporters.figures("train", number, values)
        left_s = self._remaining.estimate(total - number) if total and total > number else None
        done = StepDone(step=number, final_step=total, remaining_s=left_s, unit=unit, ended_at=ended_at, others=values)
        self._events.emit(done)
        shown = [
            f"{value:.3g} {unit}/s" if name == "per_s" else f"{name} {value:.4g}" for name, value in values.items()
        ]
        of_total = f"/{total}" if total else ""
        left = [f"{duration(left_s)} left"] if left_s else []
        self._events.say("  ".join((f"step {number}{of_total}", *shown, *left)))


def _number(value: Any) -> float:
    """Convert a number, or a tensor of one value. ValueError, TypeError: something else."""
    return float(value.detach() if hasattr(value, "detach") else value)
