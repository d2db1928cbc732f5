"""The block-shuffled order: every sample once an epoch, from any position at once, in no memory to speak of."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from trainer.data.order import BlockShuffled, ByLength, share


@pytest.mark.parametrize("samples", [1, 2, 5, 7, 8, 15, 16, 17, 100, 1023, 1024, 1025])
@pytest.mark.parametrize(("block", "window"), [(1, 1), (3, 2), (8, 4), (512, 16)])
def test_every_sample_comes_once_in_each_epoch(samples: int, block: int, window: int) -> None:
    order = BlockShuffled(samples, 7, block=block, window=window)
    epochs = [order.take(epoch * samples, samples) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(samples))


def test_epochs_and_seeds_differ() -> None:
    order = BlockShuffled(10_000, 7)
    first, second = order.take(0, 10_000), order.take(10_000, 10_000)
    other = BlockShuffled(10_000, 8).take(0, 10_000)
    assert (first != second).mean() > 0.99
    assert (first != other).mean() > 0.99


def test_a_batch_is_mixed() -> None:
    """Samples come from many places of the data: as of a full shuffle, a batch has a tenth of each tenth."""
    order = BlockShuffled(1_000_000, 7)
    batches = np.stack([order.take(step * 8192, 256) for step in range(100)])
    assert np.abs(np.corrcoef(batches.reshape(-1), np.arange(batches.size))[0, 1]) < 0.05
    assert np.median([len(np.unique(batch // 512)) for batch in batches]) >= 15
    places = np.histogram(batches // 512, bins=10, range=(0, 1954))[0] / batches.size
    assert places.min() > 0.05


def test_neighbours_of_one_epoch_are_not_those_of_the_next() -> None:
    """The blocks begin elsewhere: which samples come within one window changes."""
    order = BlockShuffled(4096, 7, block=64, window=2)

    def begins(epoch: int) -> set[int]:
        return {int(order.window(epoch, number).min()) % 64 for number in range(4)}

    assert begins(0) != begins(1)


@pytest.mark.parametrize("position", [0, 1, 255, 8191, 8192, 19_999, 20_000, 55_555])
def test_any_position_gives_what_an_undisturbed_run_gives(position: int) -> None:
    undisturbed = BlockShuffled(20_000, 7).take(0, 60_000)
    assert (BlockShuffled(20_000, 7).take(position, 300) == undisturbed[position : position + 300]).all()


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_share_the_same_samples_however_many_they_are(world_size: int) -> None:
    alone = BlockShuffled(1000, 7, block=16, window=4).take(990, 64)
    orders = [BlockShuffled(1000, 7, block=16, window=4) for _ in range(world_size)]
    shares = [share(order.take(990, 64), rank, world_size) for rank, order in enumerate(orders)]
    assert (np.concatenate(shares) == alone).all()


def test_memory_does_not_grow_with_the_samples() -> None:
    def peak(samples: int) -> int:
        tracemalloc.start()
        order = BlockShuffled(samples, 7)
        for position in (0, samples // 3, samples - 100):
            order.take(position, 256)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(20_000)
    assert peak(10**9) < 1.5 * peak(20_000) < 2 << 20


LENGTHS = np.random.default_rng(0).integers(1, 100, 20_000)


def by_length(group: int) -> ByLength:
    return ByLength(len(LENGTHS), 7, lambda indices: LENGTHS[indices], group)


def test_samples_of_similar_length_stand_together_and_each_still_comes_once() -> None:
    order = by_length(32)
    epochs = order.take(0, 40_000).reshape(2, -1)
    for epoch in epochs:
        assert sorted(epoch) == list(range(20_000))
    spread = np.median([np.ptp(LENGTHS[batch]) for batch in epochs.reshape(-1, 32)])
    usual = np.median([np.ptp(LENGTHS[batch]) for batch in BlockShuffled(20_000, 7).take(0, 20_000).reshape(-1, 32)])
    assert spread < 5 < 80 < usual


def test_by_length_too_resumes_anywhere() -> None:
    undisturbed = by_length(48).take(0, 45_000)
    for position in (100, 8192, 19_990, 33_333):
        assert (by_length(48).take(position, 500) == undisturbed[position : position + 500]).all()
