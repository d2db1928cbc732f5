"""The first view of the page as plain data: everything that its scripts read of a view of machines and their run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.state.run_state import TailLine
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.view_types import ProgressFigures

LAST_LINES = 14
"""Newest lines of the run's ranks and agents, all nodes together."""


def now_view(shown: FleetView, tail: Callable[[str], Iterable[TailLine]]) -> dict[str, Any]:
    """The view for the page. `tail`: the newest log lines of a node."""
    data = shown.data()
    if shown.run:
        data["run"]["place"] = _place(shown.run.progress)
    return {**data, "lines": last_lines((node.name for node in shown.nodes), tail)}


def _place(figures: ProgressFigures) -> str:
    """Step of the run, or epoch and step as its output has them, and its optimizer steps; loss, speed and time left are
    fields of their own."""
    if figures.output:
        words = figures.output.partition("   ")[0].split(" · ")
        place = (word for word in words if word.startswith(("epoch", "step")))
        return " · ".join((*place, "from its output", *filter(None, [figures.work])))
    if figures.step is None:
        return figures.work
    return f"step {figures.step:,}" + (f" of {figures.final_step:,}" if figures.final_step else "")


def last_lines(names: Iterable[str], tail: Callable[[str], Iterable[TailLine]]) -> list[dict[str, Any]]:
    """The newest log lines of these nodes, in order of time."""
    found = [
        {"time": line.time, "node": name, "rank": line.rank, "text": line.text}
        for name in names
        for line in list(tail(name))[-LAST_LINES:]
        if line.text.strip()
    ]
    return sorted(found, key=lambda line: str(line["time"]))[-LAST_LINES:]
