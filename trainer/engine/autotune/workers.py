"""`--num-workers auto`: how many processes load data, found by trying.

More is not better: a worker takes time to start, its batches travel between processes, and on a CPU it takes the cores
that train. On two cores with cheap data none is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

CHEAP = 0.02
"""Share of loading in a step below which workers have nothing to win."""
WORTH_IT = 0.95
"""More workers must need less than this share of the time: less of a gain is noise."""
PREFETCHED = 2
"""Batches that torch's DataLoader asks of each worker in advance: at first they come from stock."""


class Batches(Protocol):
    def __next__(self) -> object: ...

    def close(self) -> object:
        """End the worker processes."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    load: Callable[[int], object]
    """Micro-batch number i, loaded in this process."""
    compute: Callable[[object], object]
    """Computation of training on a loaded micro-batch, and no more than that: returns when the device is done."""
    loader: Callable[[int], Batches]
    """The same micro-batches from n worker processes."""


@dataclass(frozen=True, kw_only=True)
class WorkerCount:
    workers: int
    why: str
    micro_batch_s: Mapping[int, float] = field(default_factory=dict)
    """Loading and computing one micro-batch, by number of workers."""


def choose_workers(
    trial: Trial, *, cpus: int, budget_s: float = 3.0, clock: Callable[[], float] = time.perf_counter
) -> WorkerCount:
    """The smallest number that keeps loading hidden, or else is fastest. `cpus`: those this rank may use.

    Computing is part of each measurement, so that workers which train slower by taking cores are seen to do so.
    """
    load_s, compute_s = _measure_here(trial, budget_s / 4, clock)
    share = load_s / max(load_s + compute_s, 1e-12)
    times = {0: load_s + compute_s}
    if share < CHEAP:
        return WorkerCount(workers=0, why=f"0 workers: loading takes {share:.1%} of a step", micro_batch_s=times)
    began = clock()
    for workers in likeliest_first(candidates(cpus), load_s / max(compute_s, 1e-9)):
        try:
            times[workers] = _measure_with(trial, workers, budget_s / 4, clock)
        except Exception as error:  # whatever stops workers now would stop the training later, and 0 works
            return WorkerCount(workers=0, why=f"0 workers: {workers} failed with {error!r}", micro_batch_s=times)
        hidden = times[workers] * WORTH_IT <= compute_s
        if hidden or clock() - began > budget_s:
            break
    return _fewest_near_best(times, share)


def counted(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def candidates(cpus: int) -> list[int]:
    """1, 2, 4, … and all CPUs: between them a loader's speed differs less than its measurement."""
    powers = [1 << bits for bits in range(cpus.bit_length()) if 1 << bits < cpus]
    return [*powers, cpus] if cpus >= 1 else []


def likeliest_first(numbers: Sequence[int], needed: float) -> list[int]:
    """The fewest that could load as fast as is computed, then their neighbours: the budget may end any time."""
    if not numbers:
        return []
    guess = next((at for at, workers in enumerate(numbers) if workers >= needed), len(numbers) - 1)
    return sorted(numbers, key=lambda workers: (abs(numbers.index(workers) - guess), -workers))


def _measure_here(trial: Trial, budget_s: float, clock: Callable[[], float]) -> tuple[float, float]:
    """Median seconds of loading and of computing one micro-batch, in this process."""
    trial.compute(trial.load(0))  # opens files, allocates, picks kernels: once in a run
    loads: list[float] = []
    computes: list[float] = []
    began = clock()
    while len(loads) < 3 or (clock() - began < budget_s and len(loads) < 20):
        at = clock()
        batch = trial.load(1 + len(loads))
        loaded = clock()
        trial.compute(batch)
        loads.append(loaded - at)
        computes.append(clock() - loaded)
        if clock() - began > 2 * budget_s:  # slow steps: one has to do
            break
    return median(loads), median(computes)


def _measure_with(trial: Trial, workers: int, budget_s: float, clock: Callable[[], float]) -> float:
    """Seconds from one micro-batch to the next once the stock from the start is used up."""
    with closing(trial.loader(workers)) as batches:
        for _ in range(PREFETCHED * workers):
            trial.compute(next(batches))
        began, done = clock(), 0
        while done < 2 * workers + 1 or (clock() - began < budget_s and done < 10 * workers):
            trial.compute(next(batches))
            done += 1
        return (clock() - began) / done


def _fewest_near_best(times: Mapping[int, float], share: float) -> WorkerCount:
    best = min(times.values())
    chosen = min(workers for workers, seconds in times.items() if seconds * WORTH_IT <= best)
    figures = ", ".join(f"{workers}: {seconds * 1000:.3g} ms" for workers, seconds in times.items())
    why = f"{counted(chosen)}: loading takes {share:.0%} of a step (a micro-batch by workers:"
    return WorkerCount(workers=chosen, why=f"{why} {figures})", micro_batch_s=dict(times))
