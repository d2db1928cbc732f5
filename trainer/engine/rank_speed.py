"""Speed of each rank, measured in its forward passes, which wait for no peer: reported, and balanced by shares."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

from contract.cost_model.shares import split

WINDOW = 16
"""Steps that count together, so that a single slow one is no slowdown: their median is reported, and shares follow
their mean without the two slowest and the two fastest."""
FEWEST = 4
"""Number of steps before which the first step's compiling and allocating decide."""
WORTH_IT = 0.85
"""A new split must let the slowest rank finish in less than this share of the time."""
NEW_WEIGHT = 0.5
"""Weight of a window against the estimate so far: nodes that share something would oscillate otherwise."""


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
        return self.take()()

    def take(self) -> Callable[[], float]:
        """End what is to be read together; the function it returns reads it, once a GPU's work on it is done."""
        marks, samples = self._marks, self._samples
        self._marks, self._samples = [], 0
        return lambda: sum(_between(*pair) for pair in marks) / max(1, samples)

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


class ShareBalancer:
    """Decision on the ranks' shares from the time of a sample on each of them, the same on all ranks."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        self.checks = 0
        """Number of windows after which shares could have changed."""
        self._window: list[Sequence[float]] = []
        self._estimate: list[float] = []

    def update(self, sample_s: Sequence[float]) -> tuple[int, ...] | None:
        """Add the seconds a sample took in this step, by rank. Return new shares where they are worth a change."""
        self._window.append(sample_s)
        if len(self._window) < WINDOW:
            return None
        usual = [sum(sorted(column)[2:-2]) / (WINDOW - 4) for column in zip(*self._window, strict=True)]
        self._window = []
        return self.compare(usual)

    def restart(self) -> None:
        """Forget the speeds so far, and keep the shares: the model is computed by another program from now on."""
        self._window, self._estimate = [], []

    def compare(self, usual: Sequence[float]) -> tuple[int, ...] | None:
        """Weigh the usual seconds of a sample in a window, by rank. Return new shares where they are worth a change."""
        self.checks += 1
        if min(usual) <= 0:
            return None
        before = self._estimate or usual
        self._estimate = [NEW_WEIGHT * new + (1 - NEW_WEIGHT) * old for new, old in zip(usual, before, strict=True)]
        shares = better(sum(self.shares), self.shares, self._estimate)
        self.shares = shares or self.shares
        return shares


def better(total: int, shares: Sequence[int], sample_s: Sequence[float]) -> tuple[int, ...] | None:
    """Split `total` samples at these speeds, where that is worth a change from `shares`."""
    new = split(total, sample_s)
    before, after = (max(n * s for n, s in zip(part, sample_s, strict=True)) for part in (shares, new))
    return new if after < WORTH_IT * before else None


def changed_shares(names: Sequence[str], before: Sequence[int], after: Sequence[int]) -> str:
    """Text of the shares that have changed: `alpha 8 → 12, beta 8 → 4`."""
    pairs = zip(names, before, after, strict=True)
    return ", ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now)


def _between(began: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> float:
    if isinstance(began, float) or isinstance(ended, float):
        return float(ended) - float(began)  # type: ignore[arg-type]  # both are of one kind
    return float(began.elapsed_time(ended)) / 1000
