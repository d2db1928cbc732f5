"""Rates of ranks over the last minute."""

from __future__ import annotations

from contract.rank_signs import RankSigns
from trainer.agent.rank_rates import WINDOW_S, RankRate, RankRates

EVERY_S = 5.0


def signs(steps: int, collectives: int = 0, *, process: int = 7, left_out: bool = False) -> RankSigns:
    groups = {"0": (collectives, collectives)}
    return RankSigns(rank=1, process=process, optimizer_steps=steps, groups=groups, left_out=left_out)


def rate(*seen: RankSigns) -> RankRate:
    """The rates after these signs, each at a look of its own."""
    rates = RankRates()
    for number, one in enumerate(seen):
        rates.take([one], EVERY_S * number)
    return rates.by_rank.get(1, RankRate())


def test_steps_and_collectives_are_counted_from_the_fifth_step() -> None:
    """Steps before it compile, and broadcast the model."""
    assert rate(signs(4, 100)) == RankRate()
    assert rate(signs(4, 100), signs(5, 101)) == RankRate()
    known = RankRate(steps_per_s=3.0, collectives_per_step=2.0)
    assert rate(signs(4, 100), signs(5, 102), signs(20, 132)) == known
    assert rate(signs(5, 0), signs(9, 8)) == RankRate(steps_per_s=0.8)


def test_only_the_last_minute_counts() -> None:
    fast = [signs(5 + 50 * number, 50 * number) for number in range(40)]
    slow = [signs(fast[-1].optimizer_steps + 5 * number, fast[-1].completed) for number in range(1, 14)]
    assert rate(*fast) == RankRate(steps_per_s=10.0, collectives_per_step=1.0)
    assert len(slow) * EVERY_S > WINDOW_S
    assert rate(*fast, *slow) == RankRate(steps_per_s=1.0, collectives_per_step=0.0)
    assert rate(*fast, *[fast[-1]] * 14) == RankRate(steps_per_s=0.0)


def test_a_rank_that_was_started_again_or_is_left_out_begins_at_nothing() -> None:
    assert rate(signs(5), signs(500), signs(6, process=8)) == RankRate()
    assert rate(signs(5, left_out=True), signs(500, left_out=True)) == RankRate()
