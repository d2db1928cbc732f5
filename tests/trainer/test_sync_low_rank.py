"""PowerSGD's maths, with several ranks in one process."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor

from trainer.engine.sync.low_rank import LowRank, orthonormal, thin

SHAPES = [torch.Size(size) for size in ((40, 30), (30,), (8, 3, 3, 3), (), (2, 3), (0, 4), (64, 16))]
COMPRESSED = (0, 2, 6)
Gradients = list[Tensor]


class Ranks:
    """Virtual ranks, each in a thread of its own, that meet where they average."""

    def __init__(self, world_size: int, rank: int = 2, shapes: list[torch.Size] = SHAPES) -> None:
        self.low_rank = [LowRank(shapes, rank=rank, seed=7) for _ in range(world_size)]
        self.collectives: list[int] = []
        self._barrier = Barrier(world_size, timeout=60)
        self._given: dict[int, Tensor] = {}

    def reduce(self, gradients: list[Gradients]) -> list[Gradients]:
        """Map what each rank had to what it has afterwards."""
        after = [[each.clone() for each in own] for own in gradients]
        with ThreadPoolExecutor(len(after)) as pool:
            list(pool.map(lambda at: self.low_rank[at].reduce(after[at], self._meet(at)), range(len(after))))
        return after

    def _meet(self, at: int) -> Callable[[Tensor], None]:
        def all_reduce(tensor: Tensor) -> None:
            self._given[at] = tensor.clone()
            if self._barrier.wait() == 0:
                self.collectives.append(tensor.numel())
            tensor.copy_(torch.stack([self._given[rank] for rank in sorted(self._given)]).mean(0))
            self._barrier.wait()

        return all_reduce


def gradients(world_size: int, seed: int = 0, shapes: list[torch.Size] = SHAPES) -> list[Gradients]:
    chance = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=chance) for shape in shapes] for _ in range(world_size)]


def mean_of(given: list[Gradients]) -> Gradients:
    return [torch.stack(alike).mean(0) for alike in zip(*given, strict=True)]


def test_all_ranks_get_the_same() -> None:
    first, *others = Ranks(3).reduce(gradients(3))
    for other in others:
        assert all(a.equal(b) for a, b in zip(first, other, strict=True))


def test_what_is_not_compressed_is_the_mean() -> None:
    given = gradients(3)
    got = Ranks(3).reduce(given)[0]
    for at, mean in enumerate(mean_of(given)):
        assert got[at].shape == mean.shape
        assert torch.allclose(got[at], mean, atol=1e-6) == (at not in COMPRESSED)


def test_two_collectives_of_the_reported_size() -> None:
    ranks = Ranks(2)
    ranks.reduce(gradients(2))
    p_and_whole = 2 * (40 + 8 + 64) + 30 + 1 + 6
    assert ranks.collectives == [p_and_whole, 2 * (30 + 27 // 3 * 3 + 16)]
    assert sum(thin(shape, 2) for shape in SHAPES) == sum(ranks.collectives)


def test_matrices_of_that_rank_come_out_whole_after_few_steps() -> None:
    """The power iteration: the same gradient twice, and its columns are found."""
    chance = torch.Generator().manual_seed(3)
    low = torch.randn(40, 2, generator=chance) @ torch.randn(2, 30, generator=chance)
    ranks = Ranks(2, shapes=[torch.Size((40, 30))])
    for _ in range(2):
        got = ranks.reduce([[low], [low]])[0][0]
    torch.testing.assert_close(got, low, rtol=1e-4, atol=1e-4)


def test_the_sum_of_what_is_applied_follows_the_sum_of_what_was_given() -> None:
    """Error feedback: a constant gradient of full rank arrives, and what is owed does not continue to grow."""
    ranks, given = Ranks(3, shapes=[torch.Size((12, 10))]), gradients(3, shapes=[torch.Size((12, 10))])
    wanted = mean_of(given)[0]
    arrived, owed = torch.zeros(12, 10), []
    for step in range(1, 201):
        arrived += ranks.reduce(given)[0][0]
        owed.append((step * wanted - arrived).norm().item())
    saved = torch.stack([each.state_dict()["residuals"][0] for each in ranks.low_rank]).mean(0)
    torch.testing.assert_close(arrived + saved, 200 * wanted, rtol=1e-3, atol=1e-2)
    assert max(owed[100:]) <= 1.2 * max(owed[:100])


def test_differences_along_what_is_sent_are_no_debt() -> None:
    """The ranks agree on the columns and differ in the rows: all that either has lies along P, and nothing is kept."""
    columns, rows = torch.ones(12, 1), [torch.arange(10.0)[None], -torch.ones(1, 10)]
    ranks = Ranks(2, rank=1, shapes=[torch.Size((12, 10))])
    for _ in range(20):
        ranks.reduce([[columns @ row] for row in rows])
    for each in ranks.low_rank:
        assert each.state_dict()["residuals"][0].norm() < 1e-3


def test_a_saved_state_continues_as_if_nothing_had_happened() -> None:
    ranks, again = Ranks(2), Ranks(2)
    for step in range(3):
        ranks.reduce(gradients(2, seed=step))
    for old, new in zip(ranks.low_rank, again.low_rank, strict=True):
        new.load_state_dict(old.state_dict())
    first, second = ranks.reduce(gradients(2, seed=9)), again.reduce(gradients(2, seed=9))
    assert all(a.equal(b) for a, b in zip(first[0], second[0], strict=True))


def test_a_state_of_other_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="PowerSGD's residuals"):
        Ranks(1).low_rank[0].load_state_dict(Ranks(1, shapes=SHAPES[:1]).low_rank[0].state_dict())


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_reaches_all_ranks_and_no_state(at: int, bad: float) -> None:
    ranks, sound = Ranks(2), Ranks(2)
    given = gradients(2)
    broken = [[each.clone() for each in own] for own in given]
    broken[1][at].view(-1)[5] = bad
    for own in ranks.reduce(broken):
        assert all(each.isnan().all() for each in own)
    after, untouched = ranks.reduce(given), sound.reduce(given)
    assert all(a.equal(b) for a, b in zip(after[0], untouched[0], strict=True))


def test_zero_gradients_stay_zero() -> None:
    zeros = [[torch.zeros(shape) for shape in SHAPES]] * 2
    assert all(each.eq(0).all() for each in Ranks(2).reduce(zeros)[0])


def test_only_what_cannot_be_compressed() -> None:
    shapes = [torch.Size((7,))]
    got = Ranks(2, shapes=shapes).reduce([[torch.ones(7)], [torch.zeros(7)]])
    assert got[0][0].tolist() == [0.5] * 7


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e15])
def test_columns_are_made_orthonormal(size: float) -> None:
    matrix = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * size * torch.logspace(0, -4, 6)
    basis = orthonormal([matrix])[0]
    torch.testing.assert_close(basis.mT @ basis, torch.eye(6), rtol=0, atol=1e-2)
    first = matrix[:, 0].double()
    torch.testing.assert_close(basis[:, 0], (first / first.norm()).float())


def test_columns_that_depend_on_others_are_never_longer_than_one() -> None:
    column = torch.randn(50, 1, generator=torch.Generator().manual_seed(1))
    basis = orthonormal([column.expand(50, 3).contiguous()])[0]
    assert torch.linalg.matrix_norm(basis, 2) <= 1 + 1e-5
