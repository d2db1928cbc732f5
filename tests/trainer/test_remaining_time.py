"""The estimate of a training's remaining time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from trainer.engine.reporting.metrics import Throughput
from trainer.engine.reporting.remaining_time import RECENT_STEPS, RemainingTime


def counted(*steps: float) -> RemainingTime:
    remaining = RemainingTime()
    for seconds in steps:
        remaining.step(seconds)
    return remaining


def test_one_step_is_not_enough_for_an_estimate() -> None:
    assert counted().estimate(10) is None
    assert counted(30.0).estimate(10) is None


def test_the_slow_first_step_does_not_count() -> None:
    assert counted(30.0, 2.0, 2.0).estimate(10) == 20.0
    assert counted(30.0, 9.0, 9.0, 9.0, 9.0, 2.0).estimate(10) == 20.0


def test_recent_steps_count() -> None:
    assert counted(*[5.0] * 300, *[1.0] * RECENT_STEPS).estimate(7) == 7.0


def test_evaluations_count_and_compiling_does_not() -> None:
    """200 of 1,000 steps of 1 s; an evaluation of 20 s every 100 steps; compiling took a minute after the fifth."""
    remaining = RemainingTime()
    for step in range(1, 201):
        remaining.step(1.0)
        if step == 5:
            remaining.pause(60.0)
        if step % 100 == 0:
            remaining.pause(20.0)
    assert remaining.estimate(800) == pytest.approx(800 + 8 * 20, rel=0.01)


def test_a_training_measures_steps_and_pauses_apart() -> None:
    times = iter([0.0, *(float(step) for step in range(1, 7)), 6.0, 16.0, 17.0])
    throughput = Throughput(clock=lambda: next(times))
    for _ in range(6):
        throughput.count(8)
    with throughput.paused():  # 10 s after the sixth step
        pass
    throughput.count(8)
    assert throughput.remaining_s(4) == 4 * (1.0 + 10.0 / 2)


def test_a_training_notes_where_its_speed_changes() -> None:
    ends = [float(step) for step in range(1, 31)] + [30 + 0.9 * step for step in range(1, 9)]
    times = iter([0.0, *ends])
    throughput = Throughput(clock=lambda: next(times))
    for _ in range(30):
        throughput.count(8)
    throughput.change_speed()
    for _ in range(8):
        throughput.count(8)
    assert throughput.remaining_s(10) == pytest.approx(9.0)


def test_a_step_that_is_counted_late_ends_before_the_pause_that_followed_it() -> None:
    times = iter([0.0, 1.0, 11.0])
    throughput = Throughput(clock=lambda: next(times))
    with throughput.paused():  # 10 s after the first step, which is counted in the second
        pass
    throughput.count(8, ended=1.0)
    assert throughput.read()[0] == 8.0
    throughput.count(8, ended=12.0)
    assert throughput.read()[0] == 8.0
    assert throughput.step_s == 1.0


def test_steps_before_a_change_of_speed_do_not_count() -> None:
    """Neither one that was noted, nor one that shows; a few steps are not enough for either."""
    noted, seen = RemainingTime(), RemainingTime()
    for remaining in (noted, seen):
        for step in range(60):
            remaining.step(1.0 + 0.2 * (step % 2))
    noted.change()
    for step in range(7):
        noted.step(0.9 + 0.2 * (step % 2))
    assert noted.estimate(10) == pytest.approx(11, rel=0.02)
    noted.step(1.1)
    assert noted.estimate(10) == pytest.approx(10, rel=0.02)
    for step in range(12):
        seen.step(0.7 + 0.2 * (step % 2))
    assert seen.estimate(10) == pytest.approx(8, rel=0.02)


RECORDED_S = (
    2.15, 2.02, 2.03, 2.12, 2.05, 1.75, 1.66, 1.76, 1.75, 1.58, 1.78, 1.73, 1.71, 1.75, 1.57, 1.64, 1.58, 1.71, 1.56,
    1.47, 1.61, 1.53, 1.71, 1.65, 1.84, 1.72, 1.63, 1.66, 1.92, 1.54,
)  # fmt: skip
"""Seconds of each ten steps of a recorded training on five machines of a lab (tests/fixtures/quickstart.cast)."""
PAUSES_S, SHARES_CHANGED = {100: 0.6, 200: 0.6}, (14, 48, 97)
"""Evaluations with a checkpoint by the step before them, and the steps after which ranks got other shares."""


@pytest.mark.parametrize("seed", range(8))
def test_a_recorded_training_within_a_tenth_after_a_fifth_of_its_steps(seed: int) -> None:
    """Its steps became a sixth shorter at step 50, as shares followed the nodes' speed: the mean of all steps was 19 %
    too long at step 60. Only the time of each ten steps is recorded."""
    random, remaining = Random(seed), RemainingTime()  # noqa: S311  # the same at each run
    times = [one for ten_s in RECORDED_S for one in _spread(ten_s, random)]
    for step, seconds in enumerate(times[:60], 1):
        remaining.step(3.0 if step == 1 else seconds)
        remaining.pause(PAUSES_S.get(step, 0.0))
        if step in SHARES_CHANGED:
            remaining.change()
    left = sum(times[60:]) + sum(PAUSES_S.values())
    assert remaining.estimate(240) == pytest.approx(left, rel=0.1)


def _spread(ten_s: float, random: Random) -> list[float]:
    """Ten times with this sum."""
    shares = [max(0.5, random.gauss(1, 0.1)) for _ in range(10)]
    return [ten_s * share / sum(shares) for share in shares]


def _noisy(step: int, random: Random) -> float:
    return max(0.01, random.gauss(0.1, 0.02))


def _one_hang(step: int, random: Random) -> float:
    return 20.0 if step == 150 else _noisy(step, random)


def _stalls(step: int, random: Random) -> float:
    return 5.0 if step % 90 == 0 else _noisy(step, random)


def _slower(step: int, random: Random) -> float:
    return _noisy(step, random) * (1 if step < 60 else 6)


def _weights_now_and_then(step: int, random: Random) -> float:
    return 2.0 if step % 50 == 0 else _noisy(step, random)


def _evaluations(step: int) -> float:
    return 5.0 if step % 100 == 0 else 0.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pause", [lambda _step: 0.0, _evaluations], ids=["no pauses", "evaluations"])
@pytest.mark.parametrize("step_s", [_noisy, _one_hang, _stalls, _slower, _weights_now_and_then])
def test_within_a_tenth_after_a_fifth_of_the_steps(
    step_s: Callable[[int, Random], float], pause: Callable[[int], float], seed: int
) -> None:
    random, steps, remaining = Random(seed), 1000, RemainingTime()  # noqa: S311  # the same at each run
    times = [(30.0 if step == 1 else step_s(step, random), pause(step)) for step in range(1, steps + 1)]
    for seconds, paused_s in times[: steps // 5]:
        remaining.step(seconds)
        remaining.pause(paused_s)
    left = sum(seconds + paused_s for seconds, paused_s in times[steps // 5 :])
    assert remaining.estimate(steps - steps // 5) == pytest.approx(left, rel=0.1)
