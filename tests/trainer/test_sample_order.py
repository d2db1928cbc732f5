"""Order of samples, as a workload sees it: the same for any ranks and workers, however often resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.observed import SAMPLES, same, seen, state
from trainer.data.order import Shuffled

STEPS, PER_STEP = 9, 7
"""63 samples of 23: over the ends of two epochs, which no step meets."""
COMMON = {"global_batch_size": PER_STEP, "batch_size": 2, "schedule": "constant", "warmup_steps": 0, "lr": 0.05}


def stream(run_dir: Path, rank: int = 0) -> list[tuple[int, int]]:
    """(position, sample) in the order in which this rank trained on them."""
    return [pair for one in seen(run_dir, rank) for pair in zip(one["positions"], one["indices"], strict=True)]


def expected(steps: int = STEPS, seed: int = 1337) -> list[tuple[int, int]]:
    return list(enumerate(Shuffled(SAMPLES, seed).take(0, steps * PER_STEP).tolist()))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_any_number_of_workers(workers: int, observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, **COMMON, max_steps=STEPS, num_workers=workers)
    assert run.code == 0, run.err
    assert stream(tmp_path) == expected()


def test_a_run_that_continues_with_other_ranks_and_workers(observe: Any, tmp_path: Path) -> None:
    """1, then 3, then 2 ranks, then 1 again, each stopped within an epoch: the undisturbed run of one rank."""
    whole = observe(tmp_path / "whole", **COMMON, max_steps=STEPS)
    losses: dict[int, float] = {}
    reports: list[tuple[int, int]] = []
    first = 0
    for ranks, workers, last in ((1, 0, 2), (3, 2, 5), (2, 0, 7), (1, 2, STEPS)):
        part = observe(tmp_path / "parts", ranks, **COMMON, max_steps=last, num_workers=workers)
        assert part.code == 0, part.err
        losses |= part.losses()
        for rank in range(ranks):
            own = stream(tmp_path / "parts", rank)[4 * (ranks > 1) :]  # before DDP, and in its rehearsal
            (tmp_path / "parts" / f"seen-{rank}.jsonl").unlink()
            begin, end = PER_STEP * rank // ranks, PER_STEP * (rank + 1) // ranks
            shares = [PER_STEP * step + place for step in range(first, last) for place in range(begin, end)]
            assert [position for position, _ in own] == shares
            reports += own
        first = last
    assert sorted(reports) == expected()
    assert len(losses) == STEPS
    assert losses == pytest.approx(whole.losses(), rel=1e-6)


def test_an_epoch_of_groups_is_exact_with_other_ranks_and_batches(observe: Any, tmp_path: Path) -> None:
    """Each sample once in each of two epochs, though steps change from 4 to 6 to 5 samples within the first."""
    learned: list[tuple[int, int]] = []
    for ranks, samples, last in ((1, 4, 2), (2, 6, 3), (1, 5, 10)):
        run = observe(tmp_path, ranks, {"bucketed": True}, **COMMON | {"global_batch_size": samples}, max_steps=last)
        assert run.code == 0, run.err
        for rank in range(ranks):
            learned += stream(tmp_path, rank)[4 * (ranks > 1) :]  # before DDP, and in its rehearsal
            (tmp_path / f"seen-{rank}.jsonl").unlink()
    positions, order = zip(*sorted(learned), strict=True)
    assert positions == tuple(range(4 * 2 + 6 + 5 * 7))
    for epoch in range(2):
        assert sorted(order[SAMPLES * epoch : SAMPLES * (epoch + 1)]) == list(range(SAMPLES))
    assert state(tmp_path, 10)["step_sizes"] == [(0, 4), (8, 6), (14, 5)]


def test_the_seed_changes_order_weights_and_noise(observe: Any, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("again", 1), ("b", 2)):
        assert observe(tmp_path / name, **COMMON, max_steps=3, seed=seed).code == 0
        assert stream(tmp_path / name) == expected(3, seed)
    assert seen(tmp_path / "a") == seen(tmp_path / "again")
    assert same(state(tmp_path / "a", 3), state(tmp_path / "again", 3))
    first, other = seen(tmp_path / "a"), seen(tmp_path / "b")
    assert not {one["noise"] for one in first} & {one["noise"] for one in other}
    assert not same(state(tmp_path / "a", 3)["model"], state(tmp_path / "b", 3)["model"])
