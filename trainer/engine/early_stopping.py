"""Best evaluation so far, and the decision to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.errors import ConfigurationError, OptionError

LOWER_IS_BETTER = ("loss", "perplexity", "bits", "nats", "error", "mae", "mse", "rmse", "brier")


class EarlyStopping:
    """`metric` is a name among an evaluation's figures, or `name:min` or `name:max` where the name misleads."""

    def __init__(self, metric: str, patience: int) -> None:
        """`patience`: evaluations in a row without improvement; 0: only remember the best."""
        self.metric, _, direction = metric.partition(":")
        if direction not in ("", "min", "max"):
            name = self.metric
            raise OptionError(f"--early-stopping {metric}: expected {name}, {name}:min or {name}:max")
        if patience < 0:
            raise OptionError(f"--patience {patience}: expected 0 or more")
        self.lower = direction == "min" or (not direction and lower_is_better(self.metric))
        self.patience = patience
        self.best = math.inf if self.lower else -math.inf
        self.best_step = 0
        self.waited = 0
        """Evaluations since the best."""

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Return whether this evaluation is the best so far."""
        if self.metric not in metrics:
            raise ConfigurationError(
                f"--early-stopping {self.metric}: the evaluation at step {step} has no such figure;"
                f" it has {', '.join(sorted(metrics))}"
            )
        value = metrics[self.metric]
        improved = value < self.best if self.lower else value > self.best  # NaN improves nothing
        if improved:
            self.best, self.best_step, self.waited = value, step, 0
        else:
            self.waited += 1
        return improved

    @property
    def exhausted(self) -> bool:
        return 0 < self.patience <= self.waited

    @property
    def why(self) -> str:
        """Reason for people, once it is exhausted."""
        best = f"best {self.best:.4g} at step {self.best_step}"
        return f"{self.metric} has not improved in {self.waited} evaluations: {best}"

    def state(self) -> dict[str, float | int | None]:
        best = self.best if math.isfinite(self.best) else None  # JSON has no infinity
        return {"best": best, "best_step": self.best_step, "waited": self.waited}

    def restore(self, state: Mapping[str, float | int | None]) -> None:
        best = state["best"]
        if best is not None:
            self.best = float(best)
        self.best_step, self.waited = int(state["best_step"] or 0), int(state["waited"] or 0)


def lower_is_better(metric: str) -> bool:
    """Return whether a metric should fall, by its name: `causa_loss` and `bits_per_byte` do, `f1` and `auroc` should
    rise."""
    return any(word in LOWER_IS_BETTER for word in metric.lower().replace("/", "_").split("_"))
