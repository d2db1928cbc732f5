"""Number of workers that load, decided on a simulated machine whose clock moves only by what is done."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from trainer.engine.autotune.workers import Trial, WorkerCount, candidates, choose_workers, likeliest_first


@dataclass
class Machine:
    """Loading and computing take what they are given; n workers load n micro-batches at once."""

    load_s: float
    compute_s: float
    contention: float = 0.0
    """Slowdown of computing by each worker that takes its core."""
    now: float = 0.0
    started: list[int] = field(default_factory=list)
    broken: bool = False
    running: int = 0
    """Workers that were not ended."""

    def trial(self) -> Trial:
        return Trial(load=self.load, compute=lambda _batch: self.compute(0), loader=self.loader)

    def load(self, number: int) -> object:
        self.now += self.load_s
        return number

    def compute(self, workers: int) -> None:
        self.now += self.compute_s * (1 + self.contention * workers)

    def loader(self, workers: int) -> Generator[object, None, None]:
        self.started.append(workers)
        if self.broken:
            raise RuntimeError("Bus error: insufficient shared memory")
        return self.batches(workers)

    def batches(self, workers: int) -> Generator[object, None, None]:
        """Each is there once `load_s` / workers have passed since the one before, computing included."""
        self.running += workers
        try:
            while True:
                yielded = self.now
                yield object()
                self.now += self.compute_s * self.contention * workers
                self.now = max(self.now, yielded + self.load_s / workers)
        finally:
            self.running -= workers

    def choose(self, cpus: int = 8) -> WorkerCount:
        choice = choose_workers(self.trial(), cpus=cpus, clock=lambda: self.now)
        assert self.running == 0
        return choice


def test_cheap_loading_starts_no_process() -> None:
    machine = Machine(load_s=0.0004, compute_s=0.1)
    choice = machine.choose()
    assert (choice.workers, choice.why) == (0, "0 workers: loading takes 0.4% of a step")
    assert machine.started == []


@pytest.mark.parametrize(("load_s", "workers", "started"), [(0.008, 1, [1]), (0.018, 2, [2]), (0.039, 4, [4])])
def test_the_fewest_that_hide_loading(load_s: float, workers: int, started: list[int]) -> None:
    """A GPU trains in 10 ms whatever the CPUs do."""
    machine = Machine(load_s=load_s, compute_s=0.01)
    choice = machine.choose()
    assert choice.workers == workers
    assert machine.started == started  # none is tried beyond
    assert choice.micro_batch_s[workers] == pytest.approx(0.01)


def test_two_cores_that_train_have_none_to_spare() -> None:
    """Time of a worker is taken from training (seed 000's advice, here by measurement)."""
    machine = Machine(load_s=0.002, compute_s=0.01, contention=0.5)
    choice = machine.choose(cpus=2)
    assert choice.workers == 0
    assert "0 workers: loading takes 17% of a step" in choice.why
    assert "1: 15 ms" in choice.why


def test_loading_slower_than_anything_takes_the_fastest_within_the_budget() -> None:
    machine = Machine(load_s=1.0, compute_s=0.01)
    choice = machine.choose(cpus=64)
    assert choice.workers == 64
    assert machine.started == [64]  # the likeliest came first
    assert machine.now < 10


def test_workers_that_cannot_work_leave_it_to_this_process() -> None:
    choice = Machine(load_s=0.01, compute_s=0.01, broken=True).choose()
    assert choice.workers == 0
    assert "1 failed with RuntimeError('Bus error" in choice.why


@pytest.mark.parametrize(("cpus", "tried"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_candidates(cpus: int, tried: list[int]) -> None:
    assert candidates(cpus) == tried


@pytest.mark.parametrize(
    ("needed", "order"), [(0.3, [1, 2, 4, 8]), (1.5, [2, 4, 1, 8]), (8.0, [8, 4, 2, 1]), (99.0, [8, 4, 2, 1])]
)
def test_the_likeliest_comes_first(needed: float, order: list[int]) -> None:
    assert likeliest_first([1, 2, 4, 8], needed) == order
    assert likeliest_first([], needed) == []
