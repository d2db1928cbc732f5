"""Advice about a batch that leaves much of a GPU idle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.conftest import Call
from trainer.engine.hardware import device
from trainer.engine.hardware.card_use import PassCost, larger_batch, recommendation

GPT2_ON_H100 = PassCost(flops=1024 * 0.854e9, peak=989e12, tensors=148)


def test_a_small_batch_on_a_large_card_is_reported_with_a_larger_one() -> None:
    assert recommendation(GPT2_ON_H100, 4, 10_000) == (
        "batch 4 uses about 50 % of this GPU, which waits for kernel launches (estimate):"
        " --batch-size 32 would use about 90 %, if it fits into memory"
    )
    assert "--micro-batch-size 32 would" in recommendation(GPT2_ON_H100, 4, 10_000, "--micro-batch-size")


@pytest.mark.parametrize(
    ("cost", "samples"),
    [
        (GPT2_ON_H100, 16),
        (replace(GPT2_ON_H100, peak=18e12), 1),  # an RTX 3050
        (replace(GPT2_ON_H100, peak=0.0), 4),
        (replace(GPT2_ON_H100, flops=0.0), 4),
    ],
    ids=["large batch", "small card", "unknown card", "unknown model"],
)
def test_nothing_is_reported_of_a_batch_that_is_enough_or_of_unknown_cost(cost: PassCost, samples: int) -> None:
    assert recommendation(cost, samples, 10_000) == ""


def test_the_larger_batch_keeps_to_what_the_step_has_and_to_a_similar_training() -> None:
    assert larger_batch(GPT2_ON_H100, 4, 15) == 8
    assert larger_batch(GPT2_ON_H100, 4, 7) == 0
    tiny = replace(GPT2_ON_H100, flops=1e7)
    assert larger_batch(tiny, 8, 10_000) == 128
    assert "uses less than 10 %" in recommendation(tiny, 8, 10_000)


def test_a_training_reports_it_once_and_only_for_a_known_card(
    train: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "of this GPU" not in train(tmp_path / "cpu", "--max-steps", "1").out
    monkeypatch.setattr(device.Hardware, "peak_flops", 989e12)
    reported = train(tmp_path / "known", "--max-steps", "1", "--batch-size", "2")
    assert reported.code == 0, reported.err
    assert reported.out.count("batch 2 uses less than 10 % of this GPU") == 1
    assert "--batch-size 32 would" in reported.out
    fixed = train(tmp_path / "fixed", "--max-steps", "1", "--batch-size", "2", "--global-batch-size", "2")
    assert "of this GPU" not in fixed.out
