"""Which learning rate suits: raise it from tiny to huge and look where the loss falls fastest.

The range test of L. N. Smith, Cyclical learning rates for training neural networks (2017).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.errors import TrainerError

SMOOTHING = 0.9
SETTLED = 0.1
"""Share of the steps at the start in which the smoothed loss still follows single batches."""


@dataclass(frozen=True, kw_only=True)
class LRRangeTest:
    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    steepest: float
    """Where the loss falls fastest."""
    tenth_of_minimum: float
    """A tenth of where the loss is lowest: beyond that it soon breaks out."""
    diverged: bool
    """Whether it did; if not, an even higher rate might serve."""

    @property
    def suggested(self) -> float:
        """The more careful of the two."""
        return min(self.steepest, self.tenth_of_minimum)


def find_lr(
    step: Callable[[float], float], *, lowest: float = 1e-7, highest: float = 1.0, steps: int = 100
) -> LRRangeTest:
    """`step(lr)` trains one step at that rate and returns its loss, before the step. Who calls this puts the weights
    back afterwards: they are spoilt."""
    lrs: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    diverged = False
    for lr in ramp(lowest, highest, steps):
        loss = step(lr)
        if not math.isfinite(loss):
            diverged = True
            break
        lrs.append(lr)
        losses.append(loss)
        smoothed = smooth(losses)
        if breaks_out(smoothed):
            diverged = True
            break
    steepest, minimum = landmarks(lrs, smoothed, settled=round(steps * SETTLED))
    return LRRangeTest(
        lrs=tuple(lrs),
        losses=tuple(losses),
        smoothed=tuple(smoothed),
        steepest=steepest,
        tenth_of_minimum=minimum / 10,
        diverged=diverged,
    )


def ramp(lowest: float, highest: float, steps: int) -> list[float]:
    """Equal factors from one to the next."""
    return [lowest * (highest / lowest) ** (number / max(1, steps - 1)) for number in range(steps)]


def smooth(losses: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """Exponential moving mean, without its pull towards zero at the start."""
    smoothed, mean = [], 0.0
    for number, loss in enumerate(losses, start=1):
        mean = weight * mean + (1 - weight) * loss
        smoothed.append(mean / (1 - weight**number))
    return smoothed


def breaks_out(smoothed: Sequence[float]) -> bool:
    """The loss is far above the best it had: more than four times, or than it ever fell three times over."""
    best = min(smoothed)
    return smoothed[-1] - best > 3 * max(abs(best), smoothed[0] - best)


def landmarks(lrs: Sequence[float], smoothed: Sequence[float], *, settled: int) -> tuple[float, float]:
    """The rates where the loss falls fastest and where it is lowest."""
    if len(smoothed) <= settled + 2:
        raise TrainerError(
            f"the loss broke out after {len(smoothed)} steps of the learning-rate search, at"
            f" {lrs[-1] if lrs else 0:.1e}: search from a smaller rate on, or look at the data"
        )
    lowest = min(range(settled, len(smoothed)), key=smoothed.__getitem__)
    falls = {at: smoothed[at + 1] - smoothed[at - 1] for at in range(max(1, settled), min(lowest, len(smoothed) - 1))}
    if not falls or min(falls.values()) >= 0:
        raise TrainerError(
            f"the loss never fell between learning rates {lrs[0]:.1e} and {lrs[-1]:.1e}:"
            " search from a smaller rate on, with more steps, or look at the data"
        )
    return lrs[min(falls, key=falls.__getitem__)], lrs[lowest]


def save(found: LRRangeTest, folder: Path) -> tuple[Path, Path]:
    """The figures as JSON and the curve as a picture."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    figures, picture = folder / "find_lr.json", folder / "find_lr.png"
    figures.write_text(json.dumps({**asdict(found), "suggested": found.suggested}, indent=1) + "\n", "utf-8")
    drawing = Figure(figsize=(7, 4), layout="constrained")
    axes = drawing.add_subplot()
    axes.plot(found.lrs, found.losses, color="0.8", label="loss")
    axes.plot(found.lrs, found.smoothed, color="tab:blue", label="smoothed")
    for name, lr in (("steepest", found.steepest), ("tenth of the minimum", found.tenth_of_minimum)):
        axes.axvline(lr, linestyle="--", color="tab:red" if lr == found.suggested else "0.5", label=f"{name}: {lr:.1e}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=f"suggested --lr {found.suggested:.1e}")
    # What broke out would press the rest of the curve flat.
    low, high = min(found.losses), max(found.smoothed[: max(1, len(found.smoothed) // 2)])
    axes.set_ylim(low - 0.1 * (high - low + 1e-12), high + 0.5 * (high - low + 1e-12))
    axes.legend()
    drawing.savefig(picture, dpi=120)
    return figures, picture
