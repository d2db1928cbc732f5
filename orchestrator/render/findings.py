"""What `orch doctor` found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.render.printable import printable
from orchestrator.specs.examined import Examined
from orchestrator.specs.finding import Finding, Severity

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
MARKS = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "·"}
WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """All that one look at the fleet gave."""

    at: datetime
    nodes: Sequence[Examined]
    findings: Mapping[str, tuple[Finding, ...]]
    """By area; an area that was not looked at is not in it."""
    area_seconds: Mapping[str, float]
    """Until all was known that the area rests on."""
    seconds: float
    stage_seconds: Mapping[str, float]

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        return tuple(finding for found in self.findings.values() for finding in found)

    @property
    def unfit(self) -> bool:
        """An error was found: a launch would be refused, or would fail."""
        return any(finding.severity is Severity.ERROR for finding in self.all_findings)


def doctor_screen(report: DoctorReport) -> RenderableType:
    """A line for each area, then the findings of each with cause and fix, then one line for all."""
    lines = [_area_line(area, found, report.area_seconds[area]) for area, found in report.findings.items()]
    blocks = [block for area, found in report.findings.items() if found for block in _block(area, found)]
    return Group(*lines, *blocks, Text(), _closing(report))


def doctor_json(report: DoctorReport) -> str:
    """The same for programs: every fact, every finding unfolded, and whether a launch would be refused."""
    findings = [{"area": area, **asdict(finding)} for area, found in report.findings.items() for finding in found]
    whole = {
        "at": report.at.isoformat(timespec="seconds"),
        "unfit": report.unfit,
        "seconds": round(report.seconds, 3),
        "stage_seconds": {name: round(seconds, 3) for name, seconds in report.stage_seconds.items()},
        "findings": findings,
        "nodes": [TypeAdapter(Examined).dump_python(node, mode="json") for node in report.nodes],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _area_line(area: str, found: Sequence[Finding], seconds: float) -> Text:
    worst = next((severity for severity in MARKS if any(one.severity is severity for one in found)), None)
    line = Text(f"{MARKS[worst]} " if worst else "✓ ", style=STYLES[worst] if worst else "green")
    line.append(f"{area:<10}", style="bold" if worst else "not bold default")
    line.append(f"{seconds:6.1f} s", style="not bold dim")
    if found:
        line.append(f"   {_counts(found)}", style="not bold default")
    return line


def _block(area: str, found: Sequence[Finding]) -> Iterator[RenderableType]:
    yield Text()
    yield Text(area, style="bold underline")
    for names, finding in fold(found):
        said = Text(printable(sentence(names, finding)), style="bold")
        said.append(f"  [{finding.id}]", style="not bold dim")
        yield _hanging(Text(f"{MARKS[finding.severity]} ", style=STYLES[finding.severity]), said)
        if finding.cause:
            yield _hanging(Text("  cause: ", style="dim"), Text(printable(finding.cause), style="dim"))
        if finding.fix:
            # one line whatever the width, as the terminal alone wraps it: a command that can be copied
            yield Text(printable(f"    fix:   {finding.fix}"), no_wrap=True, overflow="ignore")
        yield Text(f"    more:  orch explain {finding.id}", style="dim")


def _hanging(begin: Text, words: Text) -> RenderableType:
    """Lines after the first stand below the words, not below what they begin with."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(begin, words)
    return Padding(grid, (0, 0, 0, 2), expand=False)


def fold(findings: Sequence[Finding]) -> list[tuple[tuple[str, ...], Finding]]:
    """Identical findings of several nodes as one, with the names of the nodes, in order of the first of each."""
    groups: dict[tuple[str, ...], tuple[list[str], Finding]] = {}
    for finding in findings:
        key = (finding.id, finding.severity.value, finding.message, finding.cause, finding.fix)
        names, _ = groups.setdefault(key, ([], finding))
        if finding.node and finding.node not in names:
            names.append(finding.node)
    return [(tuple(names), finding) for names, finding in groups.values()]


def sentence(names: Sequence[str], finding: Finding) -> str:
    """What was found, with the nodes in front where it does not name them itself."""
    named = all(name in finding.message for name in names)
    return finding.message if named else f"{', '.join(names)}: {finding.message}"


def _closing(report: DoctorReport) -> Text:
    found = report.all_findings
    nodes = f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'}"
    text = f"{nodes} looked at in {report.seconds:.1f} s: {_counts(found) or 'all in health'}"
    return Text(text, style="bold red" if report.unfit else "bold")


def _counts(found: Sequence[Finding]) -> str:
    """Of what is shown, where the same finding of several nodes is one."""
    folded = [finding.severity for _, finding in fold(found)]
    numbers = {severity: folded.count(severity) for severity in MARKS}
    return ", ".join(f"{n} {WORDS[severity]}{'' if n == 1 else 's'}" for severity, n in numbers.items() if n)
