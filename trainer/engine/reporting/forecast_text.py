"""A forecast as lines of text, for a trainer without an orchestrator."""

from __future__ import annotations

from contract.cost_model.choice import SyncChoice
from contract.cost_model.step_time import ALONE, StepTime
from contract.cost_model.units import mbit, names, seconds, thousands

CHOSEN = "▶"


def summary(choice: SyncChoice) -> str:
    """One line, for logs beside which the orchestrator shows the table."""
    row = choice.chosen
    speed = f"{thousands(row.per_s)} {choice.measured.unit}/s"
    if row.sync == ALONE:
        return f"forecast: {row.nodes[0]} alone, {speed}"
    return f"forecast: {row.sync} on {names(row.nodes)}, {speed}, {row.speedup:.1f} x {choice.best_node} alone"


def table(choice: SyncChoice) -> list[str]:
    """Lines without colour: sync methods, links, nodes that are left out (grouped by reason), warnings."""
    measured = choice.measured
    head = ("", "sync", "nodes", "step", "compute", "exchange", f"{measured.unit}/s", f"x {choice.best_node}")
    cells = [head, *(_cells(row, choice) for row in choice.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    if any(not row.proven for row in choice.rows):
        lines.append("? whether its loss stays within 0.5 % of fp32's is not known: taken only where asked for")
    if len(measured.nodes) > 1:
        links = ", ".join(f"{node.node} {mbit(node.link)}" for node in measured.nodes)
        lines.append(f"links: {links}; {measured.latency_s * 1e3:.1f} ms a round")
    reasons: dict[str, list[str]] = {}
    for out in choice.left_out:
        reasons.setdefault(out.why, []).append(out.node)
    lines += [f"left out: {', '.join(nodes)}: {why}" for why, nodes in reasons.items()]
    return lines + [f"warning: {text}" for text in choice.warnings]


def _cells(row: StepTime, choice: SyncChoice) -> tuple[str, ...]:
    everyone = len(row.nodes) == len(choice.measured.nodes) > 1
    return (
        CHOSEN if row is choice.chosen else "",
        row.sync if row.proven else f"{row.sync} ?",
        f"all {len(row.nodes)}" if everyone else names(row.nodes),
        seconds(row.step_s),
        seconds(row.compute_s),
        "–" if row.sync == ALONE else seconds(row.exchange_s),
        thousands(row.per_s),
        f"{row.speedup:.2f}",
    )
