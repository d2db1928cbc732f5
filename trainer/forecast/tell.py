"""A forecast as lines for people, and as the fields of an event for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.engine.reporting.metrics import thousands
from trainer.forecast.choice import Forecast
from trainer.forecast.rows import ALONE, Row
from trainer.forecast.words import mbit, names, seconds

CHOSEN = "▶"


def as_event(forecast: Forecast) -> dict[str, Any]:
    """The fields of the `forecast` event; its name, time and rank are the sender's."""
    measured, chosen = forecast.measured, forecast.chosen
    return {
        "unit": measured.unit,
        "rows": [_fields(row, chosen=row is chosen) for row in forecast.rows],
        "sync": chosen.sync,
        "best_node": forecast.best_node,
        "link_mbit_s": {node.node: round(node.link * 8 / 1e6, 1) for node in measured.nodes},
        "latency_ms": round(measured.latency_s * 1e3, 3),
        "left_out": [{"node": out.node, "why": out.why} for out in forecast.left_out],
        "warnings": list(forecast.warnings),
    }


def _fields(row: Row, *, chosen: bool) -> Mapping[str, Any]:
    return {
        "sync": row.sync,
        "nodes": list(row.nodes),
        "shares": list(row.shares),
        "step_s": row.step_s,
        "compute_s": row.compute_s,
        "exchange_s": row.exchange_s,
        "per_s": row.per_s,
        "speedup": row.speedup,
        "sent_mb": round(row.sent_bytes / 1e6, 3),
        "chosen": chosen,
        "proven": row.proven,
    }


def summary(forecast: Forecast) -> str:
    """The choice in one line, for where the table is shown elsewhere."""
    row = forecast.chosen
    speed = f"{thousands(row.per_s)} {forecast.measured.unit}/s"
    if row.sync == ALONE:
        return f"forecast: {row.nodes[0]} alone, {speed}"
    return f"forecast: {row.sync} on {names(row.nodes)}, {speed}, {row.speedup:.1f} x {forecast.best_node} alone"


def table(forecast: Forecast) -> list[str]:
    """Lines without colour: head, rungs, links, who is left out (for one reason: together), warnings."""
    measured = forecast.measured
    head = ("", "sync", "nodes", "step", "compute", "exchange", f"{measured.unit}/s", f"x {forecast.best_node}")
    cells = [head, *(_cells(row, forecast) for row in forecast.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    if any(not row.proven for row in forecast.rows):
        lines.append("? whether its loss stays within 0.5 % of fp32's is not known: taken only where asked for")
    if len(measured.nodes) > 1:
        links = ", ".join(f"{node.node} {mbit(node.link)}" for node in measured.nodes)
        lines.append(f"links: {links}; {measured.latency_s * 1e3:.1f} ms a round")
    reasons: dict[str, list[str]] = {}
    for out in forecast.left_out:
        reasons.setdefault(out.why, []).append(out.node)
    lines += [f"left out: {', '.join(nodes)}: {why}" for why, nodes in reasons.items()]
    return lines + [f"warning: {text}" for text in forecast.warnings]


def _cells(row: Row, forecast: Forecast) -> tuple[str, ...]:
    everyone = len(row.nodes) == len(forecast.measured.nodes) > 1
    return (
        CHOSEN if row is forecast.chosen else "",
        row.sync if row.proven else f"{row.sync} ?",
        f"all {len(row.nodes)}" if everyone else names(row.nodes),
        seconds(row.step_s),
        seconds(row.compute_s),
        "–" if row.sync == ALONE else seconds(row.exchange_s),
        thousands(row.per_s),
        f"{row.speedup:.2f}",
    )
