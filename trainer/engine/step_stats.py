"""The step's one small all-reduce: afterwards all ranks know the same, and decide alike without another exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainer.engine.group import Group
from trainer.engine.guard import finite_flags, ranks_at_fault


@dataclass(frozen=True, kw_only=True)
class TakenStep:
    """A step, and what is known of it on the CPU."""

    step: int
    lr: float
    units: int
    """Units of its samples, over all ranks."""
    targets: Sequence[float]
    """Targets of each loss term, over all ranks."""
    sample_s: Callable[[], float]
    """Seconds that a sample took on this rank, to be asked once the step is computed."""


@dataclass(frozen=True, kw_only=True)
class StepStats:
    sums: list[float]
    """Sum of each term's loss, over all ranks."""
    norm: float
    """Norm of the gradient; where each rank has its own, their mean."""
    stopping: bool
    """True if a rank was asked to stop."""
    at_fault: list[int]
    """Ranks that have a NaN or infinite loss."""
    sample_s: list[float]
    """Seconds that the forward pass of one sample took, by rank."""
    written: bool
    """True if all ranks have written their own state for the last checkpoint."""

    def mean_losses(self, terms: Iterable[str], targets: Sequence[float]) -> dict[str, float]:
        """Mean of each loss term over the step's targets."""
        means = [total / (count or 1.0) for total, count in zip(self.sums, targets, strict=True)]
        return dict(zip(terms, means, strict=True))


def all_reduce_stats(
    group: Group, sums: Sequence[float], norm: float, *, stop: bool, sample_s: float, written: bool
) -> StepStats:
    """Combine the stats of all ranks; the arguments are this rank's."""
    rank, ranks = group.place.rank, group.place.world_size
    flags = finite_flags(rank, ranks, sum(sums))
    speeds = [sample_s if other == rank else 0.0 for other in range(ranks)]
    reduced = group.all_reduce_sum([*flags, *speeds, norm / ranks, float(stop), float(written), *sums])
    return StepStats(
        at_fault=ranks_at_fault(reduced[:ranks]),
        sample_s=reduced[ranks : 2 * ranks],
        norm=reduced[2 * ranks],
        stopping=reduced[2 * ranks + 1] > 0,
        written=reduced[2 * ranks + 2] == ranks,
        sums=reduced[2 * ranks + 3 :],
    )
