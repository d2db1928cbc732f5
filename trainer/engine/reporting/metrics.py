"""Figures over time: speed, and where they are written (TensorBoard, metrics.jsonl)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType


class Speed:
    """Units per second since the last reading, without the time spent on anything but training."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._units = 0
        self._waited: Sequence[float] = ()

    def count(self, units: int) -> None:
        self._units += units

    def read(self, *waited: float) -> tuple[float, list[float]]:
        """Units per second, and for each of `waited`, the seconds so far of waiting for something, its share."""
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        before = self._waited or (0.0,) * len(waited)
        shares = [min(1.0, (so_far - then) / seconds) for so_far, then in zip(waited, before, strict=True)]
        reading = self._units / seconds, shares
        self._since, self._units, self._waited = now, 0, waited
        return reading

    def pause(self) -> Callable[[], None]:
        """Stop the clock; the returned call starts it again."""
        paused_at = self._clock()

        def go_on() -> None:
            self._since += self._clock() - paused_at

        return go_on


class Records:
    """RUN/metrics.jsonl and RUN/tensorboard. After a restart a step may stand twice: the later counts."""

    def __init__(self, run_dir: Path, *, active: bool, first_step: int) -> None:
        self._file = None
        if active:
            from torch.utils.tensorboard import SummaryWriter

            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = (run_dir / "metrics.jsonl").open("a", encoding="utf-8")
            # TensorBoard hides what an interrupted run had drawn beyond the step it resumes from.
            self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=first_step)

    def write(self, kind: str, step: int, figures: dict[str, float]) -> None:
        if self._file:
            line = {"t": time.time(), "kind": kind, "step": step, **figures}
            self._file.write(json.dumps({name: json_value(value) for name, value in line.items()}) + "\n")
            self._file.flush()
            for name, value in figures.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()
            self._board.close()


def figures_text(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in figures.items())


def json_value(value: object) -> object:
    """None for NaN and infinities, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
