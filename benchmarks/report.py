"""Results of a comparison, as JSON and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.stopwatch import Measured


@dataclass(frozen=True, kw_only=True)
class Round:
    """One run of a candidate: measured, or the reason why not."""

    measured: Measured | None = None
    problem: str = ""
    last_lines: tuple[str, ...] = ()

    def in_short(self) -> str:
        if self.measured is None:
            return self.problem
        return f"{number(self.measured.units_per_s)} {self.measured.unit}/s"


@dataclass(frozen=True, kw_only=True)
class Table:
    name: str
    title: str
    names: tuple[str, ...]
    """Candidates, in the order of rows."""
    baseline: str
    """Candidate that ratios are relative to."""
    ladder: bool = False
    """Each row adds one optimization to the row above: its gain over that row is shown as well."""


@dataclass(frozen=True, kw_only=True)
class Result:
    title: str
    command: str
    settings: Mapping[str, Any]
    machine: Mapping[str, float | str]
    began: float
    seconds: float
    load: tuple[Sequence[float], Sequence[float]]
    """Load averages over 1, 5 and 15 minutes, before and after, to judge the figures."""
    tables: tuple[Table, ...]
    rounds: Mapping[str, Sequence[Round]]
    notes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Spread:
    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(median=statistics.median(known), least=min(known), most=max(known), count=len(known))

    def text(self, write: Callable[[float], str]) -> str:
        return write(self.median) + (f" ({write(self.least)}–{write(self.most)})" if self.count > 1 else "")


def spread(rounds: Sequence[Round], figure: str) -> Spread | None:
    return Spread.of(getattr(round_.measured, figure) for round_ in rounds if round_.measured)


def ratio(rounds: Sequence[Round], to: Sequence[Round], figure: str = "units_per_s") -> Spread | None:
    """Compare per round, because both then ran in the same state of the machine."""
    pairs = [
        (getattr(a.measured, figure), getattr(b.measured, figure))
        for a, b in zip(rounds, to, strict=False)
        if a.measured and b.measured
    ]
    return Spread.of(mine / others for mine, others in pairs if mine is not None and others)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def as_json(result: Result) -> dict[str, Any]:
    plain = asdict(result)
    plain["settings"] = {name: value if _is_json(value) else str(value) for name, value in result.settings.items()}
    plain["summary"] = {table.name: _summary(table, result) for table in result.tables}
    return plain


def _summary(table: Table, result: Result) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in table.names:
        rounds = result.rounds[name]
        spreads = {
            **{
                figure: spread(rounds, figure)
                for figure in ("units_per_s", "step_s", "cpu_s", "start_s", "peak_mib", "loss")
            },
            "ratio": ratio(rounds, result.rounds.get(table.baseline, ())),
            "memory_ratio": ratio(rounds, result.rounds.get(table.baseline, ()), "peak_mib"),
        }
        problems = [round_.problem for round_ in rounds if round_.problem]
        rows[name] = {key: asdict(value) for key, value in spreads.items() if value} | {"problems": problems}
    return {"baseline": table.baseline, "rows": rows}


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


# ── Markdown ──────────────────────────────────────────────────────────────────────────────────────


def markdown(result: Result) -> str:
    before, after = (" ".join(f"{value:.1f}" for value in load) for load in result.load)
    machine = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items() if value not in (None, False))
    return "\n".join(
        [
            f"# {result.title}",
            "",
            f"`{result.command}`",
            "",
            f"Machine: {machine}. Load before {before}, after {after}.",
            f"Settings: {settings}.",
            "Medians (minimum–maximum) over the rounds; ratios are computed per round.",
            *(line for table in result.tables for line in ("", *_table(table, result))),
            *_notes(result),
        ]
    )


def _table(table: Table, result: Result) -> list[str]:
    more = list(dict.fromkeys(name for one in table.names for name in _more(result.rounds[one])))
    head = ["", "speed", f"to {table.baseline}"]
    head += ["to the row above"] if table.ladder else []
    head += ["step", "CPU a step", "start s", "peak MiB", "memory", "loss", *more]
    rows, above = [], None
    for name in table.names:
        rounds = result.rounds[name]
        baseline = result.rounds.get(table.baseline, ())
        first = next((round_.measured for round_ in rounds if round_.measured), None)
        if first is None:
            rows.append([name, rounds[-1].problem if rounds else "not run", *[""] * (len(head) - 2)])
            continue
        speed = _cell(spread(rounds, "units_per_s"), number)
        row = [name, f"{speed} {first.unit}/s", _cell(ratio(rounds, baseline), _times)]
        row += [_cell(ratio(rounds, result.rounds[above]) if above else None, _times)] if table.ladder else []
        row += [_cell(spread(rounds, figure), _seconds) for figure in ("step_s", "cpu_s")]
        row += [_cell(spread(rounds, "start_s"), "{:.0f}".format)]
        row += [_cell(spread(rounds, "peak_mib"), "{:.0f}".format), _cell(ratio(rounds, baseline, "peak_mib"), _times)]
        row += [_cell(spread(rounds, "loss"), "{:.3f}".format), *(_more(rounds).get(key, "") for key in more)]
        if rounds[-1].problem:
            row[1] += f"; then {rounds[-1].problem}"
        rows.append(row)
        above = name
    lines = [head, ["---"] * len(head), *rows]
    return [f"## {table.title}", "", *("| " + " | ".join(_safe(cell) for cell in line) + " |" for line in lines)]


def _more(rounds: Sequence[Round]) -> dict[str, str]:
    """The benchmark's own columns: medians of numbers, words as they are."""
    measured = [round_.measured for round_ in rounds if round_.measured]
    columns: dict[str, str] = {}
    for key in measured[0].more if measured else ():
        values = [one.more[key] for one in measured if key in one.more]
        numbers = [value for value in values if not isinstance(value, str)]
        columns[key] = _cell(Spread.of(numbers), number) if numbers else str(values[0])
    return columns


def _notes(result: Result) -> list[str]:
    lines = [f"- {name}: {note}" for name, note in result.notes.items()]
    for name, rounds in result.rounds.items():
        for round_ in rounds:
            if round_.last_lines:
                lines.append(f"- {name} failed; its last lines: `{' ⏎ '.join(round_.last_lines)}`")
    return ["", *lines] if lines else []


def _cell(found: Spread | None, write: Callable[[float], str]) -> str:
    return found.text(write) if found else ""


def _safe(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def number(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"
