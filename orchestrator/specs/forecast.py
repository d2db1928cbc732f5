"""What the trainer expects of a run before its first step, from a measurement on all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """One way of synchronising, with the nodes that would take part."""

    sync: str
    """The rung of the ladder; `alone` for a single node."""
    nodes: tuple[str, ...]
    step_s: float
    compute_s: float
    exchange_s: float
    """What the exchange adds to a step."""
    per_s: float
    """Units per second, of all nodes."""
    speedup: float
    """Over the best single node."""
    sent_mb: float
    """That each node sends in a step."""
    chosen: bool = False
    proven: bool = True
    """Whether the loss is known to stay as it is without."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A node that the run does without."""

    node: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A `forecast` event."""

    unit: str
    """What speed is told in: tokens, samples, images."""
    rows: tuple[ForecastRow, ...]
    sync: str
    best_node: str
    link_mbit_s: Mapping[str, float]
    latency_ms: float
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def chosen(self) -> ForecastRow:
        """The row that the run follows."""
        return next(row for row in self.rows if row.chosen)

    def led_by(self, node: str) -> bool:
        """Whether this node speaks for the run and keeps its checkpoints: the first of those that train. One of several
        ranks of a node is called `alpha.1`."""
        first = self.chosen.nodes[0]
        return first == node or first.rpartition(".")[0] == node


def read_forecast(values: Mapping[str, Any]) -> Forecast | None:
    """The values of an event, or of a file; None where they are no forecast. What a newer trainer adds is ignored."""
    try:
        forecast = TypeAdapter(Forecast).validate_python(values)  # made here: most commands read none
    except ValidationError:
        return None
    return forecast if any(row.chosen and row.nodes for row in forecast.rows) else None
