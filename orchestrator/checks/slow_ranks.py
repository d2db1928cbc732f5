"""Ranks that take longer for their part of a step than the others: all wait for the slowest, in every step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.specs.event import Event

SLOW = 1.5
"""Times the others' time."""


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """One that is flagged."""

    label: str
    """Its node, with the local rank behind a dot where that holds several."""
    node: str
    ratio: float
    """Its time for its part of a step, by the median of the others'."""

    @property
    def what(self) -> str:
        """In words."""
        return f"{self.label} takes {self.ratio:.1f} x the others' time for its part of a step"

    def todo(self, run_id: str) -> str:
        """What to do about it."""
        return (
            f"--shares auto gives it a smaller part; what slows it: orch doctor --node {self.node}; "
            f"without it: orch restart {run_id} --nodes …"
        )


def slow_ranks(event: Event | None, nodes: Collection[str]) -> tuple[SlowRank, ...]:
    """By a `step` event of a run on these nodes; the slowest first."""
    times = _times(event.values if event else {})
    found = []
    for label, seconds in times.items():
        usual = median(others) if (others := [other for name, other in times.items() if name != label]) else 0.0
        if usual > 0 and seconds > SLOW * usual:
            found.append(
                SlowRank(label=label, node=label if label in nodes else label.rpartition(".")[0], ratio=seconds / usual)
            )
    return tuple(sorted(found, key=lambda one: -one.ratio))


def _times(values: Mapping[str, Any]) -> dict[str, float]:
    told = values.get("compute_s")
    pairs = told.items() if isinstance(told, Mapping) else ()
    return {str(label): float(seconds) for label, seconds in pairs if isinstance(seconds, int | float)}
