"""The forecast that a run makes before its first step: predicted speed for each sync method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.cost_model.choice import SyncChoice
from contract.cost_model.step_time import StepTime
from contract.json_reader import from_json


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """Predicted step of one sync method with some nodes."""

    sync: str
    """Sync method; `alone` for a single node."""
    nodes: tuple[str, ...]
    shares: tuple[int, ...] = ()
    """Samples of each of `nodes` in a step."""
    step_s: float
    compute_s: float
    exchange_s: float
    """Seconds that the exchange adds to a step."""
    per_s: float
    """Units per second of all nodes."""
    speedup: float
    """Speed divided by that of the best single node."""
    sent_mb: float
    """Megabytes that each node sends in a step."""
    chosen: bool = False
    proven: bool = True
    """True if the loss is known to stay within 0.5 % of fp32's."""


@dataclass(frozen=True, kw_only=True)
class LeftOutNode:
    """A node that takes no part in the run, and the reason."""

    node: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted speed of a run with each sync method."""

    unit: str
    """Unit of speeds: tokens, samples, images."""
    rows: tuple[ForecastRow, ...]
    sync: str
    best_node: str
    """The best single node."""
    link_mbit_s: Mapping[str, float]
    latency_ms: float
    left_out: tuple[LeftOutNode, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def chosen(self) -> ForecastRow:
        """The row that the run follows."""
        return next(row for row in self.rows if row.chosen)

    def led_by(self, node: str) -> bool:
        """Return whether this node reports for the run and keeps its checkpoints: the first node that trains. One of
        several ranks of a node is called `alpha.1`."""
        first = self.chosen.nodes[0]
        return first == node or first.rpartition(".")[0] == node


def forecast(choice: SyncChoice) -> Forecast:
    """Return the forecast of a choice."""
    measured = choice.measured
    return Forecast(
        unit=measured.unit,
        rows=tuple(_row(row, chosen=row is choice.chosen) for row in choice.rows),
        sync=choice.chosen.sync,
        best_node=choice.best_node,
        link_mbit_s={node.node: round(node.link * 8 / 1e6, 1) for node in measured.nodes},
        latency_ms=round(measured.latency_s * 1e3, 3),
        left_out=tuple(LeftOutNode(node=out.node, why=out.why) for out in choice.left_out),
        warnings=choice.warnings,
    )


def _row(row: StepTime, *, chosen: bool) -> ForecastRow:
    return ForecastRow(
        sync=row.sync,
        nodes=row.nodes,
        shares=row.shares,
        step_s=row.step_s,
        compute_s=row.compute_s,
        exchange_s=row.exchange_s,
        per_s=row.per_s,
        speedup=row.speedup,
        sent_mb=round(row.sent_bytes / 1e6, 3),
        chosen=chosen,
        proven=row.proven,
    )


def read_forecast(values: Any) -> Forecast:
    """Read the values of an event or of a file. Unknown keys are ignored. ValueError: they are no forecast."""
    read = from_json(Forecast, values)
    if not any(row.chosen and row.nodes for row in read.rows):
        raise ValueError("not a forecast: no row is chosen")
    return read
