"""Losses that are no numbers, or jump: named by step and rank, and answered as wished."""

from __future__ import annotations

import json
import math

import pytest

from trainer.engine.guard import ENOUGH, SKIPS_IN_A_ROW, WINDOW, Guard, finite_flags, ranks_at_fault


def calm(guard: Guard, losses: int = ENOUGH, loss: float = 2.0) -> Guard:
    for step in range(1, losses + 1):
        assert guard.judge(step, loss).action == "continue"
    return guard


def test_who_is_at_fault_travels_with_the_all_reduce() -> None:
    local = [1.0, math.nan, 2.0, math.inf]
    flags = [finite_flags(rank, 4, loss) for rank, loss in enumerate(local)]
    assert ranks_at_fault([sum(column) for column in zip(*flags, strict=True)]) == [1, 3]


def test_nan_stops_by_default_and_says_where_and_what_next() -> None:
    verdict = Guard().judge(12, math.nan, [1, 3])
    assert verdict.action == "stop"
    assert verdict.message.startswith("the loss is nan at step 12 on ranks 1, 3: try a smaller --lr")


def test_an_infinite_gradient_counts_too() -> None:
    verdict = Guard().judge(7, 2.5, gradient_norm=math.inf)
    assert (verdict.action, "the gradient is inf at step 7, where the loss is 2.5" in verdict.message) == ("stop", True)
    assert Guard().judge(7, 2.5, gradient_norm=None).action == "continue"


def test_skipping_ends_when_it_becomes_the_rule() -> None:
    guard = Guard(on_nan="skip")
    verdicts = [guard.judge(step, math.nan, [0]) for step in range(1, SKIPS_IN_A_ROW + 1)]
    assert [verdict.action for verdict in verdicts] == ["skip"] * (SKIPS_IN_A_ROW - 1) + ["stop"]
    assert verdicts[1].message == "the loss is nan at step 2 on rank 0; this update is skipped (2 in a row)"
    assert "10th update in a row" in verdicts[-1].message


def test_one_good_step_forgives_the_skips_before() -> None:
    guard = Guard(on_nan="skip")
    losses = ([math.nan] * (SKIPS_IN_A_ROW - 1) + [1.0]) * 3
    assert "stop" not in [guard.judge(step, loss).action for step, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("on_spike", "action"), [("warn", "continue"), ("skip", "skip"), ("stop", "stop"), ("off", "continue")]
)
def test_a_spike_is_answered_as_wished(on_spike: str, action: str) -> None:
    verdict = calm(Guard(on_spike=on_spike, factor=2.0)).judge(40, 5.0)  # type: ignore[arg-type]  # from parametrize
    assert verdict.action == action
    assert bool(verdict.message) is (on_spike != "off")
    if verdict.message:
        assert verdict.message.startswith("the loss is 5 at step 40, 2.5 times the usual 2")


def test_the_first_steps_jump_about_and_a_steep_fall_is_no_spike() -> None:
    guard = Guard(on_spike="stop")
    losses = [2.0, 9.0, 2.0, 9.0, *[0.5] * 40]
    assert {guard.judge(step, loss).action for step, loss in enumerate(losses)} == {"continue"}


def test_one_spike_does_not_hide_the_next() -> None:
    """The median does not follow a few outliers, as a mean would."""
    guard = calm(Guard())
    assert all("times the usual 2" in guard.judge(step, 1000.0).message for step in range(20, 20 + ENOUGH // 2))


def test_a_lasting_new_level_becomes_the_usual() -> None:
    guard = calm(Guard(), WINDOW)
    messages = [guard.judge(step, 7.0).message for step in range(WINDOW)]
    assert messages[0]
    assert not messages[-1]


def test_a_resumed_guard_judges_as_the_uninterrupted_one() -> None:
    losses = [2.0 + 0.1 * (step % 7) for step in range(30)] + [math.nan, 9.0, 2.0, math.nan, 4.9, 2.1]
    for cut in range(len(losses)):
        whole, first, second = (Guard(on_nan="skip", on_spike="skip") for _ in range(3))
        expected = [whole.judge(step, loss) for step, loss in enumerate(losses)]
        seen = [first.judge(step, loss) for step, loss in enumerate(losses[:cut])]
        second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
        seen += [second.judge(step, loss) for step, loss in enumerate(losses[cut:], start=cut)]
        assert seen == expected
