"""The step's one small all-reduce: afterwards all ranks know the same, and decide alike without asking again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.engine.group import Group
from trainer.engine.guard import finite_flags, ranks_at_fault


@dataclass(frozen=True, kw_only=True)
class StepStats:
    sums: list[float]
    """Sum of each term's loss, over all ranks."""
    norm: float
    """Norm of the gradient; where each rank has its own, their mean."""
    stopping: bool
    """Whether one was asked to stop."""
    at_fault: list[int]
    """Ranks whose own loss is NaN or infinite."""
    sample_s: list[float]
    """How long one sample took, by rank: its forward pass, in seconds."""
    written: bool
    """Whether all ranks have written what each alone knows for the last checkpoint."""


def tell(group: Group, sums: Sequence[float], norm: float, stop: bool, sample_s: float, written: bool) -> StepStats:
    """All of them this rank's."""
    rank, ranks = group.place.rank, group.place.world_size
    flags = finite_flags(rank, ranks, sum(sums))
    speeds = [sample_s if other == rank else 0.0 for other in range(ranks)]
    heard = group.all_reduce_sum([*flags, *speeds, norm / ranks, float(stop), float(written), *sums])
    return StepStats(
        at_fault=ranks_at_fault(heard[:ranks]),
        sample_s=heard[ranks : 2 * ranks],
        norm=heard[2 * ranks],
        stopping=heard[2 * ranks + 1] > 0,
        written=heard[2 * ranks + 2] == ranks,
        sums=heard[2 * ranks + 3 :],
    )
