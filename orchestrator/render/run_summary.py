"""Key figures of recorded runs, as text: for the page, `orch report --format text`, and browsers without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from contract.cost_model.units import duration
from orchestrator.render.printable import printable
from orchestrator.render.times import moment
from orchestrator.render.why import why_lines
from orchestrator.specs.curve import Curve
from orchestrator.state.run_report import RunReport

Row = tuple[str, ...]
LOWER_IS_BETTER = ("loss", "perplexity", "error")
HIGHER_IS_BETTER = ("per_s", "mfu", "tflops", "of_forecast", "accuracy", "f1", "precision", "recall", "auc")
"""Ends of the names of figures, of which one end is the better one."""
LAST_LINES = 20
OPTION_CHARS = 300


def verdict(report: RunReport) -> str:
    """State of the run, with the reason of its end where there is one."""
    return printable(f"{report.state}: {report.reason}" if report.reason else report.state)


def key_figures(report: RunReport) -> list[tuple[str, str]]:
    """Name and value of what a reader wants to know first; nothing that is not on record."""
    steps = "" if report.steps is None else f"{report.steps:,}"
    if report.final_step:
        steps += f" of {report.final_step:,}"
    loss, validation = report.curve("train", "loss"), report.curve("validation", "loss")
    found = (
        ("Progress" if report.progress else "Step", report.progress or steps),
        ("Last loss", number(loss.last) if loss else ""),
        ("Best validation loss", number(min(validation.y)) if validation else ""),
        ("Mean speed", f"{number(speed)} {report.unit or 'units'}/s" if (speed := report.measured_per_s) else ""),
        ("Of the forecast", _of_forecast(report)),
        ("Began", moment(report.begun_at)),
        ("Duration", duration(report.seconds) if report.seconds else ""),
        ("Nodes, ranks", f"{len(report.machines)}, {report.world_size}" if report.machines else ""),
        ("Sync method", report.sync),
        ("Backend", report.backend),
        ("Project", report.project),
        ("User", report.user),
    )
    return [(name, printable(value)) for name, value in found if value]


def _of_forecast(report: RunReport) -> str:
    predicted = report.forecast.chosen.per_s if report.forecast else 0.0
    return f"{100 * report.measured_per_s / predicted:.0f} %" if report.measured_per_s and predicted else ""


def best(curve: Curve) -> tuple[float, float] | None:
    """Step and value of its best point; None for a figure without a better end."""
    points = zip(curve.x, curve.y, strict=True)
    if curve.name.endswith(LOWER_IS_BETTER):
        return min(points, key=lambda point: point[1])
    return max(points, key=lambda point: point[1]) if curve.name.endswith(HIGHER_IS_BETTER) else None


def figure_rows(report: RunReport) -> Iterator[Row]:
    """Figure, first, best (or range) and last value of each curve over steps."""
    for curve in report.curves:
        if curve.group == "resources":
            continue
        found = best(curve)
        low, high = number(min(curve.y)), number(max(curve.y))
        middle = f"{number(found[1])} at {found[0]:,.0f}" if found else f"{low} to {high}"
        name = curve.name if curve.group == "train" else f"{curve.group} {curve.name}"
        yield printable(name), number(curve.y[0]), middle, number(curve.last)


def comparison(reports: Sequence[RunReport]) -> list[tuple[str, list[str]]]:
    """Name and values, one of each run, of the key figures and of whatever is not the same in all runs."""
    figures = [{"State": verdict(one), **dict(key_figures(one))} for one in reports]
    options = [{**{one.name: one.value for one in report.options}, **dict(report.versions)} for report in reports]
    names = dict.fromkeys(key for own in figures for key in own)
    rows = [(name, [own.get(name, "") for own in figures]) for name in names]
    for name in dict.fromkeys(key for own in options for key in own):
        values = [printable(own.get(name, "")[:OPTION_CHARS]) for own in options]
        if len(set(values)) > 1:
            rows.append((printable(name), values))
    return rows


def summary_lines(reports: Sequence[RunReport]) -> Iterator[str]:
    """Lines of `orch report --format text`."""
    if len(reports) > 1:
        rows = [(name, *values) for name, values in comparison(reports)]
        yield from aligned([("", *(one.run_id for one in reports)), *rows])
    for report in reports:
        yield from ("",) * (report is not reports[0] or len(reports) > 1)
        yield f"run {report.run_id}   {verdict(report)}"
        if report.command:
            yield f"  {printable(report.command)}"
        yield from (f"  {line}" for line in aligned(key_figures(report)))
        yield from (f"  note: {printable(note)}" for note in report.notes)
        if figures := list(figure_rows(report)):
            yield from ("", *(f"  {line}" for line in aligned([("", "first", "best", "last"), *figures])))
        if report.postmortem.failure:
            yield from ("", *(f"  {printable(line)}" for line in why_lines(report.postmortem)))
        if lines := report.last_lines[-LAST_LINES:]:
            yield from ("", *(printable(f"  {time[11:19]} {node}  {text}") for time, node, text in lines))


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """Rows as lines whose columns begin at the same place."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def number(value: float) -> str:
    """Four digits: 0.0006, 2.315, 1,240, 3.1e+07."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"
