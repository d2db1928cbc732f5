"""Pairs of ranks, round by round."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from trainer.tools.link_rates import rounds


@pytest.mark.parametrize("ranks", range(2, 10))
def test_each_two_meet_once_and_no_rank_is_in_two_pairs_at_a_time(ranks: int) -> None:
    found = rounds(ranks)
    assert sorted(chain.from_iterable(found)) == list(combinations(range(ranks), 2))
    assert len(found) == ranks - 1 + ranks % 2
    for pairs in found:
        met = list(chain.from_iterable(pairs))
        assert len(met) == len(set(met)) == ranks // 2 * 2


def test_a_rank_alone_has_no_pair() -> None:
    assert list(chain.from_iterable(rounds(1))) == []
