"""Number of samples of one forward pass: on a GPU as many as fit its memory, on a CPU as many as are fastest."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.errors import TooLittleMemoryError
from trainer.limits import memory_limit
from trainer.out_of_memory import free_memory, is_out_of_memory

SIZES = (1, 2, 4, 8, 16)
"""Tried on a CPU: beyond them activations leave the caches, and steps get no faster."""
NEAR_BEST = 0.97
"""A size within 3 % of the fastest is as fast, and the smallest of those needs the least memory."""
FILLED = 0.8
"""Share of the container's memory to fill: beyond its limit the kernel kills, and there is nothing to catch."""


# ── GPU: what fits ────────────────────────────────────────────────────────────────────────────────


def largest_that_fits(try_: Callable[[int], None], limit: int) -> int:
    """The most samples up to `limit` that `try_` (a whole step) survives: powers of two, then quarters between two.

    `try_` runs out of memory on purpose; what it leaves behind is freed after each trial.
    """
    if not fits(try_, 1):
        raise TooLittleMemoryError(NOT_EVEN_ONE)
    size = 1
    while size * 2 <= limit and fits(try_, size * 2):
        size *= 2
    quarter = max(1, size // 4)
    for more in range(size - quarter, 0, -quarter):
        if size + more <= limit and fits(try_, size + more):
            return size + more
    return size


def fits(try_: Callable[[int], None], size: int) -> bool:
    try:
        try_(size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        fitted = False
    else:
        fitted = True
    # Only here: inside `except` the error's frames still hold the tensors.
    free_memory()
    return fitted


NOT_EVEN_ONE = (
    "not even one sample fits into memory, a smaller batch does not help: try --gradient-checkpointing, shorter samples"
    " (--seq-len, --max-length, --image-size), a lower precision, --optimizer-state bf16 or a smaller model"
)


def halve(size: int) -> int:
    """The next smaller micro-batch, after one was too large."""
    if size <= 1:
        raise TooLittleMemoryError(NOT_EVEN_ONE)
    return size // 2


# ── CPU: what is fastest ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class MicroBatchChoice:
    size: int
    why: str
    samples_per_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Clock and memory readings for the trials of sizes; tests pass their own."""

    clock: Callable[[], float] = time.perf_counter
    peak_bytes: Callable[[], int] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    limit_bytes: int | None = None
    """None: the container's."""


def fastest(
    try_: Callable[[int], None], *, sizes: Sequence[int] = SIZES, budget_s: float = 20.0, meter: Meter | None = None
) -> MicroBatchChoice:
    """The size with the most samples a second; sizes for which memory or the budget's time is short are not tried."""
    meter = meter or Meter()
    limit = meter.limit_bytes or memory_limit()
    speeds: dict[int, float] = {}
    peaks = {0: meter.peak_bytes()}
    ended, began = "", meter.clock()
    last, last_s = 0, 0.0
    for size in sorted(sizes):
        if limit and expected_peak(peaks, size) > FILLED * limit:
            ended = f"; {size} might exceed the memory limit"
            break
        if last and meter.clock() - began + 2 * last_s * size / last > budget_s:
            ended = f"; larger ones were not tried, as {last} takes {last_s:.1f} s"
            break
        try_(size)  # allocates and chooses kernels, which training does once
        at = meter.clock()
        try_(size)
        last, last_s = size, max(meter.clock() - at, 1e-9)
        speeds[size] = size / last_s
        peaks[size] = meter.peak_bytes()
    if not speeds:
        raise TooLittleMemoryError(NOT_EVEN_ONE)
    best = max(speeds.values())
    chosen = min(size for size, speed in speeds.items() if speed >= NEAR_BEST * best)
    figures = ", ".join(f"{size}: {speed:.3g}" for size, speed in speeds.items())
    return MicroBatchChoice(
        size=chosen, samples_per_s=speeds, why=f"micro-batch {chosen} (samples/s by size: {figures}{ended})"
    )


def expected_peak(peaks: Mapping[int, int], size: int) -> float:
    """Peak bytes of memory at `size`, on the line through the two largest sizes so far; 0 before there are two."""
    if len(peaks) < 2:
        return 0.0
    (small, low), (large, high) = sorted(peaks.items())[-2:]
    return high + (high - low) / (large - small) * (size - large)
