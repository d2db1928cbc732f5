"""A forecast as a table of sync methods with the chosen one marked, and notes below it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from contract.cost_model.forecast import Forecast, ForecastRow
from contract.cost_model.units import seconds
from orchestrator.render.printable import printable
from orchestrator.render.table import Column, Table

CHOSEN = "▶"
NAMED = 3
"""More nodes than this are counted, not named."""


def forecast_view(forecast: Forecast) -> RenderableType:
    """Return the table, the links, the nodes that are left out, and the warnings."""
    return Group(_table(forecast), *_below(forecast))


def forecast_line(forecast: Forecast, achieved: object = None) -> str:
    """`forecast 1,216 tokens/s (4.1x alpha alone), achieved 97 %`; `achieved` as an event tells it, or None."""
    row = forecast.chosen
    over = f"{forecast.best_node} alone"
    if len(row.nodes) > 1:
        over = f"{row.speedup:.1f}x {over}"
    told = printable(f"forecast {row.per_s:,.0f} {forecast.unit}/s ({over})")
    return told + (f", achieved {achieved * 100:.0f} %" if isinstance(achieved, int | float) else "")


def _table(forecast: Forecast) -> Table:
    columns = (
        Column(""), Column("sync"), Column("nodes", 1), Column("step", 2, right=True),
        Column("compute", 4, right=True), Column("exchange", 5, right=True), Column("sent", 6, right=True),
        Column(f"{forecast.unit}/s", right=True), Column(f"x {forecast.best_node}", 3, right=True),
    )  # fmt: skip
    styles = ["bold green" if row.chosen else "" if row.proven else "dim" for row in forecast.rows]
    rows = [_cells(row, everyone=len(forecast.link_mbit_s)) for row in forecast.rows]
    return Table(columns=columns, rows=rows, styles=styles)


def _cells(row: ForecastRow, *, everyone: int) -> tuple[str, ...]:
    single = len(row.nodes) == 1
    return (
        CHOSEN if row.chosen else "",
        row.sync + ("" if row.proven else " ?"),
        _nodes(row.nodes, everyone),
        seconds(row.step_s),
        seconds(row.compute_s),
        "–" if single else seconds(row.exchange_s),
        "–" if single else f"{row.sent_mb:,.0f} MB" if row.sent_mb >= 10 else f"{row.sent_mb:.2g} MB",
        f"{row.per_s:,.0f}",
        f"{row.speedup:.2f}",
    )


def _nodes(nodes: tuple[str, ...], everyone: int) -> str:
    if len(nodes) == everyone > 1:
        return f"all {everyone}"
    return ", ".join(nodes) if len(nodes) <= NAMED else f"{len(nodes)} nodes"


def _below(forecast: Forecast) -> Iterator[RenderableType]:
    if any(not row.proven for row in forecast.rows):
        yield Text("? its loss is not known to stay within 0.5 % of fp32's: taken only where asked for", style="dim")
    if len(forecast.link_mbit_s) > 1:
        rates = ", ".join(f"{node} {rate:.0f}" for node, rate in forecast.link_mbit_s.items())
        yield Text(printable(f"links, Mbit/s: {rates}; {forecast.latency_ms:.1f} ms a round"), style="dim")
    reasons: dict[str, list[str]] = {}
    for out in forecast.left_out:
        reasons.setdefault(out.why, []).append(out.node)
    for why, nodes in reasons.items():
        yield Text(printable(f"· left out: {', '.join(nodes)}: {why}"), style="cyan")
    for warning in forecast.warnings:
        yield Text(printable(f"! {warning}"), style="yellow")
