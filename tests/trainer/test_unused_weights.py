"""Weights that take no part in a step, under every way to keep ranks in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

COMMON = {"global_batch_size": 12, "batch_size": 12, "max_steps": 4, "lr": 0.01, "warmup_steps": 0}
NAMED = "no part in the loss: spare.weight, spare.bias (2 of the tensors)"


@pytest.mark.parametrize("unused", ["always", "sometimes"])
def test_ddp_trains_a_model_with_weights_that_a_step_does_not_use(unused: str, observe: Any, tmp_path: Path) -> None:
    one = observe(tmp_path / "one", 1, {"unused": unused}, **COMMON)
    two = observe(tmp_path / "two", 2, {"unused": unused}, **COMMON)
    assert two.code == 0, two.err
    assert two.losses() == pytest.approx(one.losses(), rel=1e-5)
    if unused == "always":
        assert NAMED in two.out


def test_the_compressed_exchange_does_too(observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, 2, {"unused": "sometimes"}, **COMMON, sync="int8")
    assert run.code == 0, run.err
    assert len(run.losses()) == 4


def test_fused_sgd_takes_a_weight_whose_gradient_comes_later_than_others(observe: Any, tmp_path: Path) -> None:
    """The same holds where the figures decide on the update."""
    run = observe(tmp_path, 1, {"unused": "sometimes"}, **COMMON, optimizer="sgd", on_spike="skip")
    assert run.code == 0, run.err
