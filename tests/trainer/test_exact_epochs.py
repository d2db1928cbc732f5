"""Each sample once in each epoch, for every order and any change of ranks, batch and accumulation between two steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import RankInfo
from trainer.data.order import BlockShuffled, Bucketed, ByLength, Order, Shuffled, StepSizes, changed_steps
from trainer.engine.dataloader import BatchSplit

LENGTHS = np.random.default_rng(0).integers(1, 100, 9000)
SEED, EPOCHS = 7, 2


def _lengths(samples: int) -> Callable[..., np.ndarray]:
    return LENGTHS[:samples].__getitem__


ORDERS: dict[str, Callable[[int, StepSizes], Order]] = {
    "shuffled": lambda samples, _: Shuffled(samples, SEED),
    "bucketed": lambda samples, step_sizes: Bucketed(LENGTHS[:samples], SEED, step_sizes),
    "block_shuffled": lambda samples, _: BlockShuffled(samples, SEED, block=3, window=4),
    "by_length": lambda samples, _: ByLength(samples, SEED, _lengths(samples), 256),
}


class Part(NamedTuple):
    """Part of a run between two changes."""

    ranks: int
    batch: int
    accumulation: int
    steps: int
    favored: int
    """Samples that the first rank takes from the last one's equal share."""


parts = st.builds(Part, st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 12), st.integers(0, 8))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(sorted(ORDERS)), samples=st.integers(1, 300), run=st.lists(parts, min_size=1, max_size=8))
def test_each_sample_comes_once_in_each_epoch(kind: str, samples: int, run: list[Part]) -> None:
    learned = np.full(0, -1)
    step_sizes: StepSizes = []
    cursor = 0
    last = run[-1]._replace(steps=EPOCHS * samples // (run[-1].ranks * run[-1].batch * run[-1].accumulation) + 1)
    for part in [*run[:-1], last]:
        per_step = part.ranks * part.batch * part.accumulation
        step_sizes = changed_steps(step_sizes, cursor, per_step)
        end = cursor + part.steps * per_step
        learned = np.append(learned, np.full(end - cursor, -1))
        for positions, indices in _requested(part, ORDERS[kind](samples, step_sizes), cursor):
            assert (learned[positions] == -1).all()
            learned[positions] = indices
        cursor = end
    for epoch in range(len(learned) // samples):
        assert sorted(learned[epoch * samples : (epoch + 1) * samples].tolist()) == list(range(samples))


def _requested(part: Part, order: Order, cursor: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions and samples of all ranks' micro-batches in this part of the run."""
    share = part.batch * part.accumulation
    moved = min(part.favored, share - 1) if part.ranks > 1 else 0
    shares = [share + moved, *[share] * (part.ranks - 2), share - moved] if moved else []
    found = []
    for rank in range(part.ranks):
        place = RankInfo(rank=rank, world_size=part.ranks)
        split = BatchSplit(
            place=place, seed=SEED, per_step=share * part.ranks, micro_batch=part.batch, shares=tuple(shares)
        )
        requests = islice(split.requests(order, cursor), part.steps * split.micro_batches)
        found += [(request.positions, request.indices) for request in requests]
    return found


def test_groups_begin_with_steps_again_after_a_change() -> None:
    """The epochs after one in which steps became shorter have hardly any padding, as before it."""
    samples = 3000
    order = Bucketed(LENGTHS[:samples], SEED, changed_steps([(0, 80)], 1520, 48))
    spreads = [np.ptp(LENGTHS[order.take(at, 48)]) for at in range(1520, 4 * samples, 48)]
    assert np.median(spreads[samples // 48 :]) < 5


def test_sizes_of_steps_stay_until_they_change() -> None:
    assert changed_steps([], 0, 8) == [(0, 8)]
    assert changed_steps([(0, 8)], 0, 6) == [(0, 6)]
    assert changed_steps([(0, 8)], 80, 8) == [(0, 8)]
    assert changed_steps([(0, 8), (80, 6)], 80, 4) == [(0, 8), (80, 4)]
    assert changed_steps([(0, 8), (80, 6)], 92, 8) == [(0, 8), (80, 6), (92, 8)]
