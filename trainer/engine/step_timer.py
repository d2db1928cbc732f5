"""How fast this rank computes, seen from its forward passes: no peer's slowness is in them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

WINDOW = 16
"""Steps whose median counts."""
FEWEST = 4
"""Before, it is the first step's compiling and allocating that is seen."""


class ForwardTimer:
    """Seconds that a sample takes in the forward passes of this rank."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[float | torch.cuda.Event, float | torch.cuda.Event]] = []
        self._samples = 0

    @contextmanager
    def part(self, samples: int) -> Iterator[None]:
        """Context around a forward pass of so many samples."""
        began = self._now()
        yield
        self._marks.append((began, self._now()))
        self._samples += samples

    def read(self) -> float:
        """Seconds a sample since the last reading. On a GPU, to be asked once its work is done."""
        seconds = sum(_between(*marks) for marks in self._marks)
        per_sample = seconds / max(1, self._samples)
        self._marks, self._samples = [], 0
        return per_sample

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own gap
        event.record()
        return event


class ComputeTimes:
    """Median time that each rank computes for its part of a step: a single slow step does not show."""

    def __init__(self, labels: Sequence[str]) -> None:
        """`labels`: by rank; for one rank alone nothing is reported."""
        self._labels = labels
        self._steps: deque[list[float]] = deque(maxlen=WINDOW)

    def add(self, sample_s: Sequence[float], shares: Sequence[int]) -> None:
        """Add the figures of a step, by rank: seconds a sample, and samples."""
        self._steps.append([seconds * samples for seconds, samples in zip(sample_s, shares, strict=True)])

    def read(self) -> dict[str, dict[str, float]]:
        """`compute_s`: seconds of the forward passes of a step by rank's label; nothing after a few steps only."""
        if len(self._labels) == 1 or len(self._steps) < FEWEST:
            return {}
        usual = map(median, zip(*self._steps, strict=True))
        return {"compute_s": dict(zip(self._labels, usual, strict=True))}


def _between(began: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> float:
    if isinstance(began, float) or isinstance(ended, float):
        return float(ended) - float(began)  # type: ignore[arg-type]  # both are of one kind
    return float(began.elapsed_time(ended)) / 1000
