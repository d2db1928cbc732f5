"""Progress that is merged from the lines of the ranks of a node."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from contract.event_lines import decode_event, encode_event
from contract.events import OutputProgress
from trainer.agent.output_progress import EVERY_S, FIRST_EVERY_S, LINES_PER_S, OutputReader, totals_of


def event_of(lines: Iterable[tuple[float, str]], *, command: tuple[str, ...] = (), at: float = 0.0) -> OutputProgress:
    """The event after these lines of rank 0, each with its time; `at`: time after the last."""
    reader, now = OutputReader(command), 0.0
    for now, line in lines:
        reader.read(0, line, now)
    event = reader.event(now + at)
    assert event
    return event


def test_lines_are_merged() -> None:
    lines = ["Epoch 3/10", "step 119/400 loss 2.41", "step 120/400 loss 2.31"]
    event = event_of(enumerate(lines))
    assert (event.rank, event.epoch, event.epochs, event.step, event.steps) == (0, 3, 10, 120, 400)
    assert (event.loss, event.loss_key, event.share) == (2.31, "loss", 0.3)
    assert decode_event(encode_event(event)) == event


def test_the_time_left_is_estimated_from_own_times() -> None:
    """A printed rate or time left is never believed."""
    bar = "{0}%|#| {0}/100 [00:01<99:59:59, 999.00it/s]"
    times = [(10.0 * step, bar.format(step)) for step in range(21)]
    assert event_of(times).remaining_s == pytest.approx(800)
    assert event_of(times, at=7.0).remaining_s == pytest.approx(793)
    assert event_of(times).per_s == pytest.approx(0.1)
    assert event_of(times[:3]).remaining_s == pytest.approx(980)
    assert event_of(times[:2]).remaining_s is None  # too few updates
    assert event_of([(at / 110, line) for at, line in times]).remaining_s is None  # too early


def test_the_time_left_follows_the_pace_of_the_last_tenth() -> None:
    slow_start = [(100.0 * step, f"step {step}/1000 loss 1") for step in range(10)]
    faster = [(1000.0 + step, f"step {10 + step}/1000 loss 1") for step in range(490)]
    assert event_of([*slow_start, *faster]).remaining_s == pytest.approx(501, abs=2)


def test_epochs_and_the_part_of_one_make_the_time_left() -> None:
    lines = [f"Epoch {epoch}/4 step {step}/10 loss 1" for epoch in (1, 2) for step in range(1, 11)]
    assert event_of([(10.0 * n, line) for n, line in enumerate(lines, 1)]).remaining_s == pytest.approx(200)


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_that_are_printed_at_their_end_count_as_done(first: int) -> None:
    lines = [(10.0 * n, f"epoch {n + first} loss 0.5") for n in range(6)]
    assert event_of(lines, command=("train.py", "--epochs", "12")).remaining_s == pytest.approx(60)


def test_headers_of_epochs_do_not_count_as_done() -> None:
    lines = [(10.0 * n, f"Epoch {n}/12") for n in range(1, 8)]
    assert event_of(lines).remaining_s == pytest.approx(60)


def test_a_bar_of_one_epoch_has_a_share_and_no_time_left() -> None:
    passes = [f"Training: {step}%|#| {step}/100 [00:01<00:09, 9.00it/s]" for _ in range(2) for step in range(0, 100, 5)]
    event = event_of(enumerate(passes))
    assert (event.share, event.remaining_s) == (0.95, None)
    numbered = [f"Epoch 0: {step}%|#| {step}/100 [00:01<00:09, 9.00it/s]" for step in range(0, 100, 2)]
    event = event_of(enumerate(numbered))
    assert (event.epoch, event.share, event.remaining_s) == (0, 0.98, None)


def test_a_bar_within_the_training_does_not_replace_its_step() -> None:
    """An evaluation in the Trainer of transformers has a bar without a name, too."""
    reader = OutputReader()
    reader.read(0, " 10%|#| 50/500 [00:50<07:30, 1.00it/s]", 0.0)
    for step in range(21):
        reader.read(0, f" 10%|#| {step}/20 [00:01<00:01, 9.00it/s]", 1.0 + step)
    event = reader.event(30.0)
    assert event
    assert (event.step, event.steps) == (50, 500)


def test_a_loss_is_shown_once_its_name_was_seen_twice() -> None:
    assert event_of([(0, "epoch 1 loss 9")]).loss is None
    assert event_of([(0, "epoch 1 loss 9"), (1, "epoch 2 loss 8")]).loss == 8
    parts = ["loss_cls: 1.0", "loss_cls: 0.9", "loss: 3.0", "loss: 2.9", "loss_cls: 0.8"]
    assert event_of(enumerate(f"step {n} {line}" for n, line in enumerate(parts))).loss == 2.9


def test_nan_counts_when_it_comes_twice() -> None:
    lines = [f"step {step}: loss {'nan' if step >= 300 else 0.5}" for step in (100, 200, 300, 400)]
    event = event_of(enumerate(lines))
    assert (event.not_finite, event.not_finite_since, event.loss) == ("nan", 300, None)
    assert event_of(enumerate(lines[:3])).not_finite is None
    assert event_of(enumerate([*lines, "step 500: loss 0.4"])).not_finite is None
    assert event_of(enumerate(["epoch 1 loss inf", "epoch 2 loss inf"])).not_finite == "inf"


def test_an_event_comes_when_something_changed_and_more_often_in_the_first_minute() -> None:
    reader = OutputReader()
    reader.read(0, "", 0.0)
    assert reader.event(0.0) is None
    sent = []
    for tenth in range(1000, 2000):
        reader.read(0, f"step {tenth}", tenth / 10)
        sent += [tenth / 10] if reader.event(tenth / 10) else []
    assert sent[:60] == [100.0 + FIRST_EVERY_S * number for number in range(60)]
    assert sent[60:] == [164.0 + EVERY_S * number for number in range(8)]
    assert reader.event(300.0)
    reader = OutputReader()
    reader.read(0, "step 1", 0.0)
    assert reader.event(0.0)
    assert reader.event(100.0) is None
    reader.read(0, "step 3", 101.0)
    assert reader.event(101.0)
    reader.read(0, "step 4", 102.0)
    assert reader.event(102.0, last=True)


def test_rank_zero_speaks_for_the_node_otherwise_the_lowest_rank() -> None:
    reader = OutputReader()
    reader.read(None, "step 7", 0.0)
    reader.read(3, "step 4", 0.0)
    reader.read(2, "step 5", 0.0)
    first = reader.event(0.0)
    assert first
    assert (first.rank, first.step) == (2, 5)
    reader.read(0, "step 6", 1.0)
    second = reader.event(10.0)
    assert second
    assert (second.rank, second.step) == (0, 6)


def test_a_flood_of_lines_and_own_events_are_not_read() -> None:
    reader = OutputReader()
    assert reader.read(0, '@orch {"event": "step", "step": 3, "loss": 2.0}', 0.5).is_empty
    for number in range(10 * LINES_PER_S):
        reader.read(0, f"step {number}", 0.5)
    event = reader.event(0.5)
    assert event
    assert event.step == LINES_PER_S - 2
    assert not reader.read(0, "step 1", 1.5).is_empty


def test_totals_come_from_the_command() -> None:
    assert totals_of(("torchrun", "train.py", "--epochs", "90")) == {"epochs": 90}
    assert totals_of(("train.py", "--num-epochs=3", "max_steps=100")) == {"epochs": 3, "steps": 100}
    assert totals_of(("train.py", "--epochs", "many", "--eval-steps", "5")) == {}


def test_any_figures_make_an_event_that_can_be_sent() -> None:
    odd = [
        "loss=1e999 epoch=0",
        "loss=nan",
        "epoch 0/0",
        "step 0/0",
        "0%|#| 0/0 [00:00<?, ?it/s]",
        "step 999999999999/1",
    ]
    for line in odd:
        reader = OutputReader(("x", "--epochs", "1"))
        for second in range(100):
            reader.read(0, line, float(second))
        if event := reader.event(200.0):
            assert decode_event(encode_event(event)) is not None, line
            assert event.remaining_s is None or math.isfinite(event.remaining_s)
