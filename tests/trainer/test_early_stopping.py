"""Best evaluation, and the time to stop."""

from __future__ import annotations

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


def test_the_end_is_explained() -> None:
    watch = EarlyStopping("f1", patience=2)
    for step, f1 in ((10, 0.5), (20, 0.7), (30, 0.7), (40, 0.6)):
        watch.update(step, {"f1": f1})
    assert watch.why == "f1 has not improved in 2 evaluations: best 0.7 at step 20"


def test_an_unknown_metric_names_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no such figure; it has f1, loss"):
        EarlyStopping("f2", 3).update(10, {"loss": 1.0, "f1": 0.3})
    with pytest.raises(OptionError, match="expected loss, loss:min or loss:max"):
        EarlyStopping("loss:down", 3)
    with pytest.raises(OptionError, match="--patience -1"):
        EarlyStopping("loss", -1)
