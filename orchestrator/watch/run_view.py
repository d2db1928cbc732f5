"""A recorded run as plain data for the page and for the file of `orch report`: the same scripts draw both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.render.run_summary import best, key_figures
from orchestrator.render.why import OWNERS, headline, why_data
from orchestrator.specs.curve import Curve
from orchestrator.state.postmortem import Postmortem
from orchestrator.state.run_report import RunReport
from orchestrator.watch.plain import shown

POINTS, FEWEST_POINTS = 240, 24
"""Points of a curve that the page holds at most, and at least in an answer of many curves."""
MOMENTS, SAMPLES = 120, 3
RESOURCES = "resources"
"""Group of the curves over time; the others are over steps."""
FACTS = (
    "run_id", "project", "user", "command", "state", "reason", "begun_at", "ended_at", "seconds", "attempt",
    "world_size", "backend", "sync", "steps", "progress", "final_step", "unit", "measured_per_s", "versions",
    "curves_left_out", "moments_left_out", "lines", "notes",
)  # fmt: skip
"""Fields that the page shows as they are."""


def run_view(report: RunReport, points: int = POINTS) -> dict[str, Any]:
    """The run for the page, with at most `points` points of each curve."""
    parts = {
        "key_figures": key_figures(report),
        "options": [asdict(one) for one in report.options],
        "machines": [asdict(one) for one in report.machines],
        "phases": [asdict(one) for one in report.phases],
        "moments": [asdict(one) for one in report.moments[-MOMENTS:]],
        "samples": [asdict(one) for one in report.samples[-SAMPLES:]],
        "forecast": asdict(report.forecast) if report.forecast else None,
        "last_lines": [{"time": time, "node": node, "text": text} for time, node, text in report.last_lines],
    }
    facts = {name: getattr(report, name) for name in FACTS}
    return {**shown({**facts, **parts}), "curves": [curve_view(one, points) for one in report.curves]}


def cause_view(story: Postmortem) -> dict[str, Any]:
    """Show why a run ended, as `orch why` explains it."""
    words = {"headline": "", "owner": ""}
    if failure := story.failure:
        words = {"headline": headline(failure), "owner": OWNERS.get(failure.cause.owner, "") if failure.cause else ""}
    view: dict[str, Any] = shown({**why_data(story), **words})
    return view


def curve_view(curve: Curve, points: int) -> dict[str, Any]:
    """A curve with at most so many points, its ends and extremes; figures with five digits."""
    thinned, found = curve.thinned(points), best(curve)
    return {
        **shown({"group": curve.group, "name": curve.name, "unit": curve.unit, "node": curve.node}),
        "recorded": curve.recorded,
        "mean": _short(curve.mean),
        "first": _short(curve.y[0]),
        "best": found and [found[0], _short(found[1])],
        "low": _short(min(curve.y)),
        "high": _short(max(curve.y)),
        "last": _short(curve.last),
        "x": [x if x != int(x) else int(x) for x, _ in thinned],
        "y": [_short(y) for _, y in thinned],
    }


def only(view: Mapping[str, Any], groups: Sequence[str], names: Sequence[str], points: int) -> dict[str, Any]:
    """The run with its curves of these groups and names alone, each with at most so many points."""
    selected = [
        one for one in view.get("curves", ())
        if (not groups or one["group"] in groups) and (not names or one["name"] in names)
    ]  # fmt: skip
    most = max(FEWEST_POINTS, min(POINTS, points // max(1, len(selected))))
    return {**view, "curves": [_thinned(one, most) for one in selected], "figures": sorted(_figures(view))}


def _figures(view: Mapping[str, Any]) -> set[str]:
    """Names of all figures over steps."""
    return {one["name"] for one in view.get("curves", ()) if one["group"] != RESOURCES}


def _thinned(data: Mapping[str, Any], most: int) -> dict[str, Any]:
    if len(data["x"]) <= most:
        return dict(data)
    curve = Curve(name="", group="", x=tuple(data["x"]), y=tuple(data["y"]), recorded=0, total=0.0)
    pairs = curve.thinned(most)
    return {**data, "x": [x for x, _ in pairs], "y": [y for _, y in pairs]}


def _short(value: float) -> float | None:
    number = float(f"{value:.5g}")
    return int(number) if number == int(number) and abs(number) < 1e15 else number  # `1`, not `1.0`
