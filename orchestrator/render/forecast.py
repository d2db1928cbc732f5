"""A forecast and a capacity plan as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.cost_model.capacity import CapacityPlan, NodeEffect
from contract.cost_model.forecast import Forecast, ForecastRow
from contract.cost_model.step_time import StepTime
from contract.cost_model.units import duration, seconds
from orchestrator.render.bars import bar, stacked
from orchestrator.render.printable import printable
from orchestrator.render.table import Column, Table

CHOSEN = "▶"
NAMED = 3
"""More nodes than this are counted, not named."""
UNPROVEN = Text("? its loss is not known to stay within 0.5 % of fp32's: taken only where asked for", style="dim")


def forecast_view(forecast: Forecast, *, unproven: bool = True) -> RenderableType:
    """Return the table, the links, the nodes that are left out, and the warnings.

    `unproven`: also the methods that are taken only where they are asked for.
    """
    shown = [row for row in forecast.rows if row.proven or row.chosen or unproven]
    return Group(_table(forecast, shown), *_below(forecast, shown))


def forecast_line(forecast: Forecast, achieved: object = None) -> str:
    """`forecast 1,216 tokens/s (4.1x alpha alone), achieved 97 %`; `achieved` as an event tells it, or None."""
    row = forecast.chosen
    over = f"{forecast.best_node} alone"
    if len(row.nodes) > 1:
        over = f"{row.speedup:.1f}x {over}"
    text = printable(f"forecast {row.per_s:,.0f} {forecast.unit}/s ({over})")
    return text + (f", achieved {achieved * 100:.0f} %" if isinstance(achieved, int | float) else "")


def _table(forecast: Forecast, shown: Sequence[ForecastRow]) -> Table:
    columns = (
        Column(""), Column("sync"), Column("nodes", 1), Column("step", 2, right=True),
        Column("compute", 4, right=True), Column("exchange", 5, right=True), Column("sent", 6, right=True),
        Column(f"{forecast.unit}/s", right=True), Column(f"x {forecast.best_node}", 3, right=True),
    )  # fmt: skip
    styles = ["bold green" if row.chosen else "" if row.proven else "dim" for row in shown]
    rows = [_cells(row, everyone=len(forecast.link_mbit_s)) for row in shown]
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


def _below(forecast: Forecast, shown: Sequence[ForecastRow]) -> Iterator[RenderableType]:
    if any(not row.proven for row in shown):
        yield UNPROVEN
    if len(forecast.link_mbit_s) > 1:
        rates = ", ".join(f"{node} {rate:.0f}" for node, rate in forecast.link_mbit_s.items())
        yield Text(printable(f"links, Mbit/s: {rates}; {forecast.latency_ms:.1f} ms a round"), style="dim")
    reasons: dict[str, list[str]] = {}
    for out in forecast.left_out:
        reasons.setdefault(out.why, []).append(out.node)
    for why, nodes in reasons.items():
        yield Text(printable(f"· left out: {', '.join(nodes)}: {why}"), style="cyan")
    yield from _warnings(forecast.warnings)


COMPUTE, EXCHANGE = ("█", "green"), ("░", "yellow")
BAR = 30
EFFECT = {"helps": "green", "hurts": "red"}


def capacity_view(capacity: CapacityPlan, *, wide: bool = False) -> RenderableType:
    """Return four tables and the warnings."""
    parts = (_by_size, _by_sync, _members, _larger)
    return Group(*(line for part in parts for line in part(capacity, wide=wide)), *_warnings(capacity.warnings))


def _by_size(capacity: CapacityPlan, *, wide: bool) -> Iterator[RenderableType]:
    chosen = capacity.chosen
    columns = (
        Column(""), Column("nodes", wraps=True), Column("sync", 2), Column("step", right=True),
        Column(f"{capacity.unit}/s", 1, right=True), Column(f"x {capacity.alone.nodes[0]}", 3, right=True),
        Column("exchange", 5, right=True), Column("done in", 4, right=True),
        Column(f"{COMPUTE[0]} compute {EXCHANGE[0]} exchange", 6),
    )  # fmt: skip
    most, rows = max(row.step_s for row in capacity.by_size), []
    for row in capacity.by_size:
        # The choice prefers a more exact method within 5 % of the fastest one, and replaces it here.
        shown = chosen if len(row.nodes) == len(chosen.nodes) else row
        finish = capacity.finish_s(shown)
        rows.append((
            CHOSEN if shown is chosen else "", _names(shown.nodes), shown.sync, seconds(shown.step_s),
            f"{shown.per_s:,.0f}", f"{shown.speedup:.2f}", f"{shown.exchange_s / shown.step_s:.0%}",
            "" if finish is None else duration(finish), _bar(shown, most),
        ))  # fmt: skip
    yield Text(f"a step of {capacity.samples_per_step} samples, by number of nodes", style="bold")
    yield Table(columns=columns, rows=rows, styles=["bold green" if row[0] else "" for row in rows], wide=wide)


def _by_sync(capacity: CapacityPlan, *, wide: bool) -> Iterator[RenderableType]:
    """Each sync method with its best number of nodes."""
    if not capacity.rows:
        return
    best: dict[str, StepTime] = {}
    for row in capacity.rows:
        if row.sync not in best or row.per_s > best[row.sync].per_s:
            best[row.sync] = row
    columns = (
        Column("--sync"), Column("nodes", 1, wraps=True), Column("step", right=True),
        Column(f"{capacity.unit}/s", 2, right=True), Column(f"x {capacity.alone.nodes[0]}", 3, right=True),
        Column("sent a step", 4, right=True), Column("", 5),
    )  # fmt: skip
    most = max(row.step_s for row in best.values())
    rows = [
        (row.sync + ("" if row.proven else " ?"), _names(row.nodes), seconds(row.step_s), f"{row.per_s:,.0f}",
         f"{row.speedup:.2f}", f"{row.sent_bytes / 1e6:,.3g} MB", _bar(row, most))
        for row in best.values()
    ]  # fmt: skip
    yield from (Text(), Text("by sync method, each with its best nodes", style="bold"))
    yield Table(columns=columns, rows=rows, styles=["" if row.proven else "dim" for row in best.values()], wide=wide)
    if not all(row.proven for row in best.values()):
        yield UNPROVEN


def _members(capacity: CapacityPlan, *, wide: bool) -> Iterator[RenderableType]:
    columns = (
        Column("node"), Column(""), Column("with it", 1, right=True), Column("without", 2, right=True),
        Column("alone", 3, right=True), Column("share", 4, right=True), Column("passes of", 5, right=True),
    )  # fmt: skip
    rows = [
        (member.node, member.effect, seconds(member.with_s), seconds(member.without_s) if member.without_s else "–",
         seconds(member.alone_s), *_share(member))
        for member in capacity.members
    ]  # fmt: skip
    yield from (Text(), Text("each node: a step with and without it, and its share so that all finish together",
                             style="bold"))  # fmt: skip
    styles = [EFFECT.get(member.effect, "") for member in capacity.members]
    yield Table(columns=columns, rows=rows, styles=styles, wide=wide)


def _share(member: NodeEffect) -> tuple[str, str]:
    return (str(member.share), f"{member.passes} × {member.micro_batch}") if member.taken else ("–", "–")


def _larger(capacity: CapacityPlan, *, wide: bool) -> Iterator[RenderableType]:
    columns = (
        Column(""), Column("samples", right=True), Column("nodes", 2, right=True), Column("sync", 3),
        Column("step", 1, right=True), Column(f"{capacity.unit}/s", right=True),
        Column("of all speeds", 4, right=True), Column("", 5),
    )  # fmt: skip
    most, rows = max(each.row.per_s for each in capacity.larger), []
    for each in capacity.larger:
        row = each.row
        rows.append((
            "enough" if each.samples_per_step == capacity.enough else "", str(each.samples_per_step),
            str(len(row.nodes)), row.sync, seconds(row.step_s), f"{row.per_s:,.0f}", f"{each.efficiency:.0%}",
            bar(row.per_s, most, width=BAR, style="green"),
        ))  # fmt: skip
    yield from (Text(), Text("a larger step (--global-batch-size): the exchange stays the same", style="bold"))
    yield Table(columns=columns, rows=rows, wide=wide)


def _warnings(warnings: Sequence[str]) -> Iterator[Text]:
    return (Text(printable(f"! {warning}"), style="yellow") for warning in warnings)


def _bar(row: StepTime, most: float) -> Text:
    return stacked([(row.compute_s, *COMPUTE), (row.exchange_s, *EXCHANGE)], most, width=BAR)


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= NAMED else f"{len(nodes)}: {', '.join(nodes[: NAMED - 1])}, …"
