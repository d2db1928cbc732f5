"""Charts as SVG, without script: lines of figures over steps or time, a bar of phases. Colours come from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.render.html import Html, join, tag
from orchestrator.specs.curve import Curve, Pair

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 24
COLOURS = 8
"""Series that differ by colour; more differ by their dashes, too."""
MARKS = 24
"""Points of a series that show their value under the pointer."""
LOG_FROM = 50.0
"""Largest divided by smallest value from which an axis is logarithmic."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart."""

    name: str
    curve: Curve
    colour: int
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values on so many pixels."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of the value, within the axis."""
        low, high, value = (_log(x) if self.log else x for x in (self.low, self.high, value))
        part = (value - low) / (high - low) if high > low else 0.5
        return self.begin + (self.end - self.begin) * min(1.0, max(0.0, part))

    def ticks(self, most: int) -> list[float]:
        """Round values on the axis, at most so many."""
        if self.log:
            first, last = math.ceil(_log(self.low) - 1e-9), math.floor(_log(self.high) + 1e-9)
            powers = [10.0**n for n in range(first, last + 1)]
            if len(powers) >= 2:
                return powers[:: -(-len(powers) // most)]
            return [
                x for n in range(first - 1, last + 1) for m in (1, 2, 5) if self.low <= (x := m * 10.0**n) <= self.high
            ]
        step = _round_step((self.high - self.low) / max(1, most))
        first = math.ceil(self.low / step - 1e-9)
        return [first * step + n * step for n in range(most + 1) if first * step + n * step <= self.high + step * 1e-9]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "",
    over: str = "step",
    points: int = 300,
    log: bool = False,
) -> Html:
    """A figure with its lines, a legend where there are several, and the last, lowest and highest values as text.

    `over`: `step` or `time`, which is in seconds. `log`: whether the axis may be logarithmic. That of a percentage is
    from 0 to 100 at least.
    """
    drawn = [(one, one.curve.thinned(points)) for one in series if one.curve.x]
    values = [y for _, pairs in drawn for _, y in pairs]
    xs = [x for _, pairs in drawn for x, _ in pairs]
    across = Axis(low=min(xs), high=max(xs), begin=LEFT, end=WIDTH - RIGHT)
    up = _value_axis(values, percent=unit == "%", log=log)
    summary = "; ".join(_summary(one, len(drawn) > 1, over) for one, _ in drawn)
    picture = tag(
        "svg",
        *(_grid(across, up, over)),
        *(_line(one, pairs, across, up, over, unit) for one, pairs in drawn),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{title}: {summary}",
    )  # fmt: skip
    shown = f" ({', '.join(filter(None, (unit, 'log scale' if up.log else '')))})" if unit or up.log else ""
    legend = [
        tag("span", tag("i", class_=f"key b{one.colour % COLOURS}"), one.name, " (dashed)" if one.dashed else "")
        for one, _ in drawn
    ]
    return tag(
        "figure",
        tag("figcaption", tag("b", title), shown),
        picture,
        tag("p", *legend, class_="legend") if len(drawn) > 1 else None,
        tag("p", summary, class_="note") if len(drawn) <= 2 else None,
    )


def phase_bar(spans: Sequence[tuple[str, float, float]], marks: Sequence[tuple[str, float, str]], end: float) -> Html:
    """A bar of phases over time with marks below it. `spans`: name, begin, end; `marks`: kind, time, text."""
    across = Axis(low=0.0, high=max(end, 1e-9), begin=4, end=716)
    bars = [
        tag("rect", tag("title", f"{name}: {clock(until - begin)}"), x=_px(across.at(begin)), y=6,
            width=_px(max(0.6, across.at(until) - across.at(begin))), height=18, class_=f"phase p-{name}")
        for name, begin, until in spans
    ]  # fmt: skip
    rows = {"fault": 34, "checkpoint": 46, "evaluation": 58}
    dots = [
        tag(
            "circle",
            tag("title", f"{clock(at)}: {what}"),
            cx=_px(across.at(at)),
            cy=rows[kind],
            r=4,
            class_=f"m-{kind}",
        )
        for kind, at, what in marks
        if kind in rows
    ]
    labels = [
        join(tag("line", x1=_px(across.at(at)), x2=_px(across.at(at)), y1=66, y2=70, class_="axis"),
             tag("text", clock(at), x=_px(min(690, max(14, across.at(at)))), y=82, text_anchor="middle"))
        for at in _time_axis(across, 6)
    ]  # fmt: skip
    names = ", ".join(f"{name} {clock(until - begin)}" for name, begin, until in spans)
    return tag(
        "svg", *bars, *dots, *labels, viewBox="0 0 720 88", role="img", class_="bar", aria_label=f"phases: {names}"
    )


def number(value: float) -> str:
    """Four digits: 0.0006, 2.315, 1,240, 3.1e+07."""
    if value == 0:
        return "0"
    size = abs(value)
    if 1e3 <= size < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def clock(seconds: float) -> str:
    """`48 s`, `2:05 min`, `1:02 h`, `3.5 days`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds != whole else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h" if whole < 172800 else f"{whole / 86400:.1f} days"


def _summary(one: Series, named: bool, over: str) -> str:
    curve = one.curve
    where = (lambda x: f"step {x:,.0f}") if over == "step" else clock
    low, high = (choose(zip(curve.y, curve.x, strict=True)) for choose in (min, max))
    words = f"last {number(curve.last)}"
    if low[0] != high[0]:
        words += f", lowest {number(low[0])} at {where(low[1])}, highest {number(high[0])} at {where(high[1])}"
    return f"{one.name}: {words}" if named else words


def _value_axis(values: Sequence[float], *, percent: bool, log: bool) -> Axis:
    low, high = min(values), max(values)
    if percent:
        return Axis(low=0.0, high=max(100.0, high), begin=HEIGHT - BOTTOM, end=TOP)
    if log and low > 0 and high / low >= LOG_FROM:
        return Axis(low=low, high=high, begin=HEIGHT - BOTTOM, end=TOP, log=True)
    if low >= 0 and not log and low < 0.5 * high:
        low = 0.0
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return Axis(low=low - room if low else 0.0, high=high + room, begin=HEIGHT - BOTTOM, end=TOP)


def _grid(across: Axis, up: Axis, over: str) -> list[Html]:
    lines = []
    for value in up.ticks(5):
        y = _px(up.at(value))
        lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        lines.append(tag("text", _short(value), x=LEFT - 4, y=_px(up.at(value) + 3.5), text_anchor="end"))
    ticks = across.ticks(5) if over == "step" else _time_axis(across, 5)
    for value in ticks:
        if over == "step" and value != round(value):
            continue
        x = across.at(value)
        lines.append(tag("line", x1=_px(x), x2=_px(x), y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 3, class_="axis"))
        shown = _short(value) if over == "step" else clock(value)
        lines.append(tag("text", shown, x=_px(min(x, WIDTH - 16)), y=HEIGHT - 8, text_anchor="middle"))
    lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
    return lines


def _line(one: Series, pairs: Sequence[Pair], across: Axis, up: Axis, over: str, unit: str) -> Html:
    places = [(across.at(x), up.at(y)) for x, y in pairs]
    path = "M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in places)
    style = f"line c{one.colour % COLOURS}" + (" dashed" if one.dashed or one.colour >= COLOURS else "")
    every = -(-len(pairs) // MARKS)
    chosen = {*range(0, len(pairs), every), len(pairs) - 1}
    marks = []
    for at in sorted(chosen):
        (x, y), (px, py) = pairs[at], places[at]
        where = f"step {x:,.0f}" if over == "step" else clock(x)
        said = f"{one.name}, {where}: {number(y)} {unit}".rstrip()
        marks.append(tag("circle", tag("title", said), cx=_px(px), cy=_px(py), r=5, class_="mark"))
    alone = [tag("circle", cx=_px(places[0][0]), cy=_px(places[0][1]), r=3, class_=f"dot b{one.colour % COLOURS}")]
    return tag("g", tag("path", d=path, class_=style), *(alone if len(pairs) == 1 else ()), *marks)


def _time_axis(across: Axis, most: int) -> list[float]:
    """Times of round seconds, minutes or hours."""
    length = across.high - across.low
    steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400]
    step = next((step for step in steps if length / step <= most), 86400 * max(1, math.ceil(length / 86400 / most)))
    first = math.ceil(across.low / step)
    return [(first + n) * step for n in range(most + 2) if (first + n) * step <= across.high]


def _round_step(rough: float) -> float:
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    return next((m * size for m in (1, 2, 5) if m * size >= rough * (1 - 1e-9)), 10 * size)


def _short(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _log(value: float) -> float:
    return math.log10(max(value, 1e-300))
