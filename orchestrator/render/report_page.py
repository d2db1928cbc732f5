"""A page about runs: one HTML file that loads nothing, from nowhere. Text of nodes is escaped by `render/html.py`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from contract.cost_model.units import seconds
from orchestrator.render.charts import Series, clock, line_chart, number, phase_bar
from orchestrator.render.html import Content, Html, join, tag
from orchestrator.render.why import OWNERS, headline
from orchestrator.state.run_report import Machine, OptionUsed, RunReport

PAGE_POINTS = 40_000
"""Points of all charts of a page: about 12 bytes each."""
FEWEST_POINTS = 16
MOST_CHARTS = 40
"""Charts of figures, and charts of resources of each run."""
FIRST = ("loss", "per_s", "lr", "grad_norm")
TITLES = {"per_s": "throughput", "lr": "learning rate", "grad_norm": "gradient norm", "mfu": "model FLOPs utilization",
          "waiting": "share waiting for data", "exchanging": "share waiting for the network",
          "of_forecast": "speed divided by forecast"}  # fmt: skip
LOGARITHMIC = ("loss", "grad_norm", "perplexity")
"""Figures that span orders of magnitude."""
LOG_BUDGET, OPTION_CHARS = 60_000, 300
"""Characters of the last lines of all runs of a page."""


def report_page(reports: Sequence[RunReport], *, made_at: str, version: str) -> str:
    """The HTML of one run, or of several side by side. `made_at`: time for the footer; `version`: of orch."""
    style = (Path(__file__).parent / "report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = "Run " + reports[0].run_id if len(reports) == 1 else "Runs " + ", ".join(one.run_id for one in reports)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(style)),
    )
    points = max(FEWEST_POINTS, PAGE_POINTS // max(1, sum(len(one.curves) for one in reports)))
    body = tag(
        "body",
        tag("header", tag("h1", title), _contents(reports)),
        tag(
            "main",
            *((_headline(reports[0]),) if len(reports) == 1 else (_comparison(reports),)),
            _figures(reports, min(300, points)),
            *(_run(one, number, len(reports), min(300, points)) for number, one in enumerate(reports)),
        ),
        tag("footer", tag("p", f"Made by orch {version} at {made_at} from this computer's record.", class_="soft")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _contents(reports: Sequence[RunReport]) -> Html:
    links = [("Curves", "curves")]
    if len(reports) > 1:
        links = [("Comparison", "comparison"), *links, *((one.run_id, f"run{n}") for n, one in enumerate(reports))]
    else:
        names = ("Resources", "Timeline", "Machines", "Configuration", "Samples", "Last lines")
        links += [(name, f"{_slug(name)}-0") for name in names if name != "Samples" or reports[0].samples]
    items = [tag("li", tag("a", name, href=f"#{target}")) for name, target in links]
    return tag("nav", tag("ul", *items), aria_label="Contents")


# ── One run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run(report: RunReport, place: int, runs: int, points: int) -> Html:
    """The sections of one run; its own headline where there are several."""
    several = runs > 1
    return tag(
        "section",
        join(tag("h2", report.run_id, id=f"run{place}"), _headline(report)) if several else None,
        _resources(report, place, points),
        _forecast(report),
        _timeline(report, place),
        _machines(report, place),
        _configuration(report, place),
        _samples(report, place),
        _last_lines(report, place, runs),
    )


def _headline(report: RunReport) -> Html:
    steps = "" if report.steps is None else f"{report.steps:,}"
    if report.final_step:
        steps += f" of {report.final_step:,}"
    loss, best = report.curve("train", "loss"), report.curve("validation", "loss")
    facts: list[tuple[str, str]] = [
        ("begun", _day(report.begun_at)),
        ("lasted", clock(report.seconds)),
        ("steps", steps),
        ("progress", report.progress),
        ("last loss", number(loss.last) if loss else ""),
        ("best validation loss", number(min(best.y)) if best else ""),
        ("mean throughput", _per_s(report.measured_per_s, report.unit)),
        ("nodes, ranks", f"{len(report.machines)}, {report.world_size}" if report.machines else ""),
        ("synchronization", ", ".join(filter(None, (report.sync, report.backend)))),
        ("project", report.project),
        ("user", report.user),
    ]
    return join(
        tag(
            "p",
            tag("span", report.state, class_=f"state {report.state}"),
            f": {report.reason}" if report.reason else "",
        ),
        _cause(report),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts if value)),
        tag("p", tag("code", report.command)) if report.command else None,
        *(tag("p", note, class_="note") for note in report.notes),
    )


def _cause(report: RunReport) -> Html | None:
    """The cause of a failure, as `orch why` explains it."""
    story = report.postmortem
    failure = story.failure
    if failure is None:
        return None
    cause = failure.cause
    return tag(
        "div",
        tag("p", tag("b", headline(failure))),
        tag("p", cause.explanation) if cause else None,
        tag("p", "where: ", tag("code", cause.frame)) if cause and cause.frame else None,
        tag("p", f"owner: {OWNERS[cause.owner]}") if cause else None,
        tag("ul", *(tag("li", step) for step in cause.fix)) if cause and cause.fix else None,
        tag("pre", "\n".join(cause.evidence if cause else failure.lines)),
        *(tag("p", f"after that: {sentence}") for sentence in story.consequences),
        tag("p", f"more: orch explain {cause.finding or cause.id}", class_="note") if cause else None,
        class_="box failed",
    )


def _forecast(report: RunReport) -> Html | None:
    made = report.forecast
    if made is None:
        return None
    row, measured = made.chosen, report.measured_per_s
    ratio = f"{measured / row.per_s:.0%} of the forecast" if measured and row.per_s else "not measured"
    rows = [("throughput", _per_s(row.per_s, made.unit), _per_s(measured, report.unit or made.unit), ratio)]
    other = [
        tag("tr", tag("td", one.sync), tag("td", ", ".join(one.nodes)), _n(seconds(one.step_s)),
            _n(f"{one.per_s:,.0f}"), _n(f"{one.speedup:.2f}"), _n(f"{one.sent_mb:,.1f}"),
            tag("td", "chosen" if one.chosen else ""))
        for one in made.rows
    ]  # fmt: skip
    heads = ("sync method", "nodes", "step", f"{made.unit}/s", "speedup", "MB sent in a step", "")
    return join(
        tag("h2", "Forecast and measurement"),
        _table(("", "forecast", "measured", ""), [tag("tr", *(tag("td", cell) for cell in one)) for one in rows]),
        tag("details", tag("summary", "Forecast of each sync method"), _table(heads, other, numbers=range(2, 6))),
        *(tag("p", warning, class_="note") for warning in made.warnings),
    )


def _timeline(report: RunReport, place: int) -> Html:
    spans = [(one.name, one.begin_s, one.end_s) for one in report.phases]
    marks = [(one.kind, one.at_s, one.text) for one in report.moments]
    totals: dict[str, float] = {}
    for name, begin, end in spans:
        totals[name] = totals.get(name, 0.0) + end - begin
    rows = [
        tag(
            "tr",
            _n(clock(one.at_s)),
            tag("td", one.node),
            tag("td", one.kind, class_=f"k-{one.kind}"),
            tag("td", one.text),
        )
        for one in report.moments
    ]
    faults = sum(one.kind == "fault" for one in report.moments)
    left_out = f"{report.moments_left_out:,} more are on record." if report.moments_left_out else ""
    colours = {"train": 2, "start": 0, "measure": 3}
    keys = [
        tag("span", tag("i", class_=f"key b{colours.get(name, 7)}"), f"{name} {clock(spent)}")
        for name, spent in totals.items()
    ]
    return join(
        tag("h2", "Timeline", id=f"timeline-{place}"),
        _scrolled(phase_bar(spans, marks, report.seconds), "timeline") if spans else None,
        tag("p", *keys, class_="legend"),
        tag("p", f"Below the bar: faults ({faults}), checkpoints, evaluations. {left_out}", class_="note"),
        tag(
            "details",
            tag("summary", f"{len(rows)} moments"),
            _table(("after", "node", "", "text"), rows),
            open=faults > 0,
        ),
    )


def _machines(report: RunReport, place: int) -> Html:
    rows = []
    for one in report.machines:
        first, last = one.ranks
        rows.append(tag(
            "tr", tag("td", tag("b", one.node), tag("br"), one.address),
            _n(f"{first}" if first == last else f"{first} to {last}"),
            tag("td", _device(one)), _n(f"{one.cpus:g}"), _n(f"{one.memory_mib / 1024:.1f} GiB"),
            tag("td", one.interface, f", {one.link_mbit_s:,.0f} Mbit/s" if one.link_mbit_s is not None else ""),
            _n(seconds(one.sample_s) if one.sample_s is not None else ""),
            _n("left out" if one.left_out else "" if one.share is None else f"{one.share:.0%}"),
        ))  # fmt: skip
    heads = ("node", "ranks", "device", "CPUs", "memory", "network", "a sample takes", "share")
    out = [
        tag("p", f"{one.node} was left out: {one.left_out}", class_="note") for one in report.machines if one.left_out
    ]
    return join(
        tag("h2", "Machines", id=f"machines-{place}"),
        _table(heads, rows, numbers=(1, 3, 4, 6, 7)) if rows else tag("p", "The plan is not on record.", class_="soft"),
        *out,
    )


def _device(one: Machine) -> str:
    details = (
        one.precision,
        f"{one.threads} threads" if one.threads else "",
        f"torch {one.torch}" if one.torch else "",
    )
    return ", ".join(filter(None, (one.device, *one.gpus, *details)))


def _configuration(report: RunReport, place: int) -> Html:
    chosen = [one for one in report.options if one.origin != "default"]
    defaults = [one for one in report.options if one.origin == "default"]

    def table(options: Sequence[OptionUsed]) -> Html:
        rows = [tag("tr", tag("td", tag("code", one.name)), tag("td", one.value[:OPTION_CHARS]), tag("td", one.origin))
                for one in options]  # fmt: skip
        return _table(("option", "value", "origin"), rows)

    nothing = tag("p", "No options are on record.", class_="soft") if not report.options else None
    versions = [tag("tr", tag("td", name), tag("td", tag("code", value))) for name, value in report.versions]
    return join(
        tag("h2", "Configuration", id=f"configuration-{place}"),
        table(chosen) if chosen else nothing,
        tag("details", tag("summary", f"{len(defaults)} with their default"), table(defaults)) if defaults else None,
        tag("h3", "Versions"),
        _table(("", ""), versions) if versions else tag("p", "none on record", class_="soft"),
    )


def _samples(report: RunReport, place: int) -> Html | None:
    if not report.samples:
        return None
    parts = [
        tag(
            "figure",
            tag("figcaption", f"after step {one.step:,}" if one.step is not None else ""),
            tag("pre", one.text),
        )
        for one in report.samples
    ]
    return join(tag("h2", "Samples", id=f"samples-{place}"), *parts)


def _last_lines(report: RunReport, place: int, runs: int) -> Html:
    rows, room = [], LOG_BUDGET // runs
    for time, node, said in reversed(report.last_lines):
        room -= len(time) + len(node) + len(said)
        if room < 0:
            break
        rows.append(join(tag("i", time[11:19]), " ", tag("b", node), " ", said, "\n"))
    log = tag("pre", *reversed(rows), class_="log", tabindex="0", aria_label="last lines", role="region")
    return join(
        tag("h2", "Last lines", id=f"last-lines-{place}"),
        log if rows else tag("p", "none on record", class_="soft"),
        tag("p", f"{report.lines:,} lines are on record: orch logs {report.run_id}", class_="note"),
    )


# ── Curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _figures(reports: Sequence[RunReport], points: int) -> Html:
    """Figures of training and validation, those of all runs in one chart."""
    names = list(dict.fromkeys(one.name for report in reports for one in report.curves if one.group == "train"))
    others = list(dict.fromkeys(one.name for report in reports for one in report.curves if one.group == "validation"))
    ordered = [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]
    wanted = [("train", name) for name in ordered]
    wanted[1:1] = [("validation", name) for name in others if not (name == "loss" and "loss" in names)]
    drawn = [chart for group, name in wanted[:MOST_CHARTS] if (chart := _figure(reports, group, name, points))]
    left_out = len(wanted) - MOST_CHARTS
    return join(
        tag("h2", "Curves", id="curves"),
        tag("div", *drawn, class_="charts") if drawn else tag("p", "No figures are on record.", class_="soft"),
        tag("p", f"{left_out} more figures have no chart here; they are in the output of --json.", class_="note")
        if left_out > 0
        else None,
    )


def _figure(reports: Sequence[RunReport], group: str, name: str, points: int) -> Html | None:
    series, unit = [], ""
    for colour, report in enumerate(reports):
        own = report.run_id if len(reports) > 1 else group if name == "loss" else name
        if curve := report.curve(group, name):
            series.append(Series(name=own, curve=curve, colour=colour))
            unit = curve.unit
        if name == "loss" and group == "train" and (judged := report.curve("validation", "loss")):
            label = f"{own}, validation" if len(reports) > 1 else "validation"
            series.append(Series(name=label, curve=judged, colour=colour if len(reports) > 1 else 1, dashed=True))
    title = TITLES.get(name, name.replace("_", " ")) if group == "train" else f"validation {name.replace('_', ' ')}"
    return line_chart(title, series, unit=unit, points=points, log=name in LOGARITHMIC) if series else None


def _resources(report: RunReport, place: int, points: int) -> Html:
    """A chart of each resource, with a line for each node."""
    nodes = {one.node: n for n, one in enumerate(report.machines)}
    colours = count(len(nodes))
    charts: dict[tuple[str, str], list[Series]] = {}
    for curve in report.curves:
        if curve.group == "resources":
            colour = nodes.setdefault(curve.node, -1)
            nodes[curve.node] = colour = next(colours) if colour < 0 else colour
            charts.setdefault((curve.name, curve.unit), []).append(Series(name=curve.node, curve=curve, colour=colour))
    drawn = [
        line_chart(name, series, unit=unit, over="time", points=points)
        for (name, unit), series in list(charts.items())[:MOST_CHARTS]
    ]
    return join(
        tag("h2", "Resources", id=f"resources-{place}"),
        tag("div", *drawn, class_="charts")
        if drawn
        else tag("p", "No samples of resources are on record.", class_="soft"),
    )


# ── Several runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _comparison(reports: Sequence[RunReport]) -> Html:
    def best(report: RunReport) -> str:
        judged = report.curve("validation", "loss")
        return number(min(judged.y)) if judged else ""

    def last(report: RunReport) -> str:
        loss = report.curve("train", "loss")
        return number(loss.last) if loss else ""

    facts: Sequence[tuple[str, Callable[[RunReport], str]]] = (
        ("state", lambda one: one.state),
        ("cause", lambda one: headline(one.postmortem.failure) if one.postmortem.failure else ""),
        ("begun", lambda one: _day(one.begun_at)),
        ("lasted", lambda one: clock(one.seconds)),
        ("steps", lambda one: "" if one.steps is None else f"{one.steps:,}"),
        ("last loss", last),
        ("best validation loss", best),
        ("mean throughput", lambda one: _per_s(one.measured_per_s, one.unit)),
        ("nodes", lambda one: ", ".join(machine.node for machine in one.machines)),
        ("sync method", lambda one: one.sync),
        ("command", lambda one: one.command),
    )
    rows = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", value(one)) for one in reports))
        for name, value in facts
        if any(value(one) for one in reports)
    ]
    return join(
        tag("h2", "Comparison", id="comparison"),
        _table(("", *(one.run_id for one in reports)), [*rows, *_differences(reports)]),
    )


def _differences(reports: Sequence[RunReport]) -> Iterator[Html]:
    """A row for each option and version that is not the same in all runs."""
    values = [dict((*((one.name, one.value) for one in report.options), *report.versions)) for report in reports]
    for name in dict.fromkeys(name for own in values for name in own):
        if len({own.get(name, "") for own in values}) > 1:
            cells = (tag("td", own.get(name, "")[:OPTION_CHARS]) for own in values)
            yield tag("tr", tag("th", tag("code", name), scope="row"), *cells)


# ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(heads: Sequence[str], rows: Sequence[Html], numbers: Sequence[int] | range = ()) -> Html:
    cells = [tag("th", name, scope="col", class_="n" if at in numbers else None) for at, name in enumerate(heads)]
    head = tag("thead", tag("tr", *cells)) if any(heads) else None
    return _scrolled(tag("table", head, tag("tbody", *rows)), "table")


def _scrolled(content: Content, name: str) -> Html:
    """Wide content that scrolls in itself, also by the keyboard."""
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=name)


def _n(value: str) -> Html:
    return tag("td", value, class_="n")


def _per_s(rate: float | None, unit: str) -> str:
    return "" if rate is None else f"{number(rate)} {unit or 'units'}/s"


def _day(time: str) -> str:
    return time[:16].replace("T", " ")


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
