"""Which evaluation was the best, and when it is time to stop."""

from __future__ import annotations

import json
import math

import pytest

from trainer.engine.early_stopping import EarlyStopping, lower_is_better
from trainer.errors import ConfigurationError, OptionError


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("loss", True), ("perplexity", True), ("bits_per_byte", True), ("causa_loss", True), ("rmse", True),
        ("f1", False), ("causa_f1", False), ("auroc", False), ("accuracy", False),
    ],
)  # fmt: skip
def test_the_name_tells_the_direction(metric: str, lower: bool) -> None:
    assert lower_is_better(metric) is lower


def test_patience_counts_evaluations_since_the_best() -> None:
    watch = EarlyStopping("f1", patience=2)
    seen = [watch.update(step, {"f1": f1}) for step, f1 in ((10, 0.5), (20, 0.7), (30, 0.7))]
    assert (seen, watch.exhausted) == ([True, True, False], False)
    assert not watch.update(40, {"f1": math.nan})  # what is not a number is no improvement
    assert watch.exhausted
    assert watch.why == "f1 has not improved in 2 evaluations: best 0.7 at step 20"


def test_the_direction_can_be_given() -> None:
    watch = EarlyStopping("distance:min", patience=0)
    assert [watch.update(step, {"distance": value}) for step, value in enumerate((3.0, 4.0, 2.0))] == [
        True,
        False,
        True,
    ]
    assert not watch.exhausted  # no patience was asked for: it only remembers


def test_a_resumed_watch_goes_on_as_it_was() -> None:
    """Through JSON, as a checkpoint's manifest is."""
    watch, fresh, never_updated = EarlyStopping("loss", 2), EarlyStopping("loss", 2), EarlyStopping("loss", 2)
    watch.update(5, {"loss": 1.5})
    watch.update(6, {"loss": 1.6})
    fresh.restore(json.loads(json.dumps(watch.state())))
    assert (fresh.best, fresh.best_step, fresh.waited) == (1.5, 5, 1)
    fresh.restore(json.loads(json.dumps(never_updated.state(), allow_nan=False)))
    never_updated.restore(json.loads(json.dumps(never_updated.state())))
    assert never_updated.update(1, {"loss": 100.0})


def test_an_unknown_metric_names_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no such figure; it has f1, loss"):
        EarlyStopping("f2", 3).update(10, {"loss": 1.0, "f1": 0.3})
    with pytest.raises(OptionError, match="expected loss, loss:min or loss:max"):
        EarlyStopping("loss:down", 3)
    with pytest.raises(OptionError, match="--patience -1"):
        EarlyStopping("loss", -1)
