"""From which size of a step on more nodes pay: the exchange stays the same, the computing grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainer.forecast.measured import Cost, Measured
from trainer.forecast.rows import step_s, team
from trainer.forecast.teams import best_alone

EFFICIENT = 0.9
"""Of the sum of all nodes' speeds."""
LARGEST = 1 << 24
"""Samples: a step beyond this is no advice."""


def larger_steps(measured: Measured, cost: Cost, *, equal: bool = False) -> tuple[int | None, int | None]:
    """Samples of a step from which on all nodes together are as fast as the best one alone, and from which on they
    reach EFFICIENT of the sum of their speeds; None where no size does, or already a smaller one than the first."""

    def together_s(samples: int) -> float:
        return step_s(measured, team(measured.nodes, samples, equal=equal), cost)

    def alone_s(samples: int) -> float:
        return best_alone(replace(measured, samples_per_step=samples)).compute_s

    joint = sum(1 / node.sample_s for node in measured.nodes)
    even = _first(len(measured.nodes), lambda samples: together_s(samples) <= alone_s(samples))
    efficient = _first(len(measured.nodes), lambda samples: together_s(samples) * joint * EFFICIENT <= samples)
    return even, efficient if even and efficient and efficient > even else None


def _first(fewest: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest size that holds, rounded up to two digits. What holds goes on holding."""
    upper = fewest
    while not holds(upper):
        upper *= 2
        if upper > LARGEST:
            return None
    lower = max(fewest, upper // 2)
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (lower, middle) if holds(middle) else (middle, upper)
    unit: int = 10 ** max(0, len(str(upper)) - 2)
    return -(-upper // unit) * unit
