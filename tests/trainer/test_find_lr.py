"""The learning-rate search, on a loss that can be computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.conftest import NEEDS_TORCH
from trainer.engine.autotune.find_lr import LRRangeTest, breaks_out, find_lr, ramp, save, smooth
from trainer.errors import TrainerError


class Bowl:
    """Gradient descent on x²/2 from 3: it converges fastest at rate 1 and diverges beyond 2."""

    def __init__(self) -> None:
        self.x = 3.0
        self.seen: list[float] = []

    def step(self, lr: float) -> float:
        loss = self.x**2 / 2
        self.seen.append(lr)
        self.x -= lr * self.x
        return loss


def searched() -> LRRangeTest:
    return find_lr(Bowl().step, lowest=1e-4, highest=100, steps=120)


def test_a_bowl() -> None:
    found = searched()
    assert found.diverged
    assert 0.01 < found.steepest < 1
    assert found.tenth_of_minimum < 2
    assert found.suggested == min(found.steepest, found.tenth_of_minimum)
    # Trained at the suggested rate the loss falls, at the highest that was tried it explodes.
    kind, wild = Bowl(), Bowl()
    for _ in range(20):
        kind.step(found.suggested)
        wild.step(found.lrs[-1])
    assert abs(kind.x) < 3 < abs(wild.x)


def test_it_ends_where_the_loss_is_no_number() -> None:
    bowl = Bowl()
    found = find_lr(lambda lr: bowl.step(lr) if lr < 1.5 else math.nan, lowest=1e-4, highest=100, steps=120)
    assert found.diverged
    assert bowl.seen[-1] < 1.5
    assert len(found.lrs) == len(found.losses) == len(found.smoothed)


def test_a_search_that_ends_in_calm_says_so() -> None:
    assert not find_lr(Bowl().step, lowest=1e-4, highest=0.5, steps=60).diverged


def test_a_loss_that_never_falls() -> None:
    losses = iter(range(1, 1000))
    with pytest.raises(TrainerError, match=r"never fell between learning rates 1\.0e-07"):
        find_lr(lambda lr: 1 + next(losses) / 100)
    with pytest.raises(TrainerError, match="broke out after 0 steps"):
        find_lr(lambda lr: math.inf)


def test_its_parts() -> None:
    assert ramp(1e-3, 1.0, 4) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])
    assert smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert smooth([4.0, 0.0], weight=0.5) == pytest.approx([4.0, 4 / 3])
    assert not breaks_out([9.0, 5.0, 12.0])
    assert breaks_out([9.0, 5.0, 21.0])
    assert not breaks_out([-1.0, -2.0, 2.0])  # a loss may be below zero
    assert breaks_out([-1.0, -2.0, 5.0])


@NEEDS_TORCH
def test_figures_and_curve(tmp_path: Path) -> None:
    found = searched()
    figures, picture = save(found, tmp_path / "new")
    kept = json.loads(figures.read_text())
    assert kept["suggested"] == found.suggested
    assert kept["losses"] == list(found.losses)
    assert picture.read_bytes().startswith(b"\x89PNG")
