"""Ranks that take longer for their part of a step than the others: all wait for the slowest, in every step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from contract.cost_model.capacity import node_of
from contract.events import ProgressEvent

SLOW = 1.5
"""Times the others' time."""
SETTLED = 2
"""Times that `--shares auto` has looked at the speeds, after which what is left is not for it to even out."""


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """One that is flagged."""

    label: str
    """Its node, with the local rank behind a dot where that holds several."""
    node: str
    ratio: float
    """Its time for its part of a step, by the median of the others'."""
    balanced: bool = False
    """True if its part follows its speed already."""


def slow_ranks(event: ProgressEvent | None, nodes: Collection[str]) -> tuple[SlowRank, ...]:
    """Slow ranks according to a `step` event of a run on these nodes; the slowest first. With `--shares auto` none
    before it has had the time to balance them."""
    if event is None:
        return ()
    balanced = event.balanced
    if balanced is not None and balanced < SETTLED:
        return ()
    times = {label: seconds for label, seconds in (event.compute_s or {}).items() if seconds is not None}
    found = []
    for label, seconds in times.items():
        usual = median(others) if (others := [other for name, other in times.items() if name != label]) else 0.0
        if usual > 0 and seconds > SLOW * usual:
            found.append(
                SlowRank(label=label, node=node_of(label, nodes), ratio=seconds / usual, balanced=balanced is not None)
            )
    return tuple(sorted(found, key=lambda one: -one.ratio))
