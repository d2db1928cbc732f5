"""Early stopping against its rule, which looks at the whole history each time."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.trainer.references.conftest import Agrees
from trainer.engine.early_stopping import EarlyStopping

HISTORIES = 300


def best_of(values: list[float], lower: bool) -> int | None:
    """Number of the first evaluation that none surpasses; NaN is no value."""
    numbers = [value for value in values if not math.isnan(value)]
    return values.index(min(numbers) if lower else max(numbers)) if numbers else None


@pytest.mark.parametrize("direction", ["min", "max"])
def test_best_step_and_end(direction: str, agrees: Agrees) -> None:
    """Values, equal ones and NaN among them, resumed by JSON after each evaluation. Patience 0: no end."""
    chance, wrong = np.random.default_rng(0), 0
    for _ in range(HISTORIES):
        patience = int(chance.integers(0, 6))
        values = [float(value) for value in chance.integers(0, 9, 20) / 8]
        values = [math.nan if chance.random() < 0.1 else value for value in values]
        watch = EarlyStopping(f"figure:{direction}", patience)
        for number, value in enumerate(values):
            improved = watch.update(10 * number, {"figure": value})
            resumed = EarlyStopping(f"figure:{direction}", patience)
            resumed.restore(json.loads(json.dumps(watch.state(), allow_nan=False)))
            best = best_of(values[: number + 1], direction == "min")
            since = number - best if best is not None else number + 1
            expected = (best == number, 0 < patience <= since, 10 * (best or 0))
            wrong += (improved, watch.exhausted, watch.best_step) != expected
            wrong += (resumed.exhausted, resumed.best_step) != expected[1:]
            watch = resumed
    agrees(f"early stopping, {direction}, {HISTORIES} histories of 20", "rule written by hand", decisions=(wrong, 0))
