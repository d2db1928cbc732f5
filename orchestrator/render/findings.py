"""Findings of `orch doctor`, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.render.printable import counted, printable
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.node_report import Examined

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
MARKS = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "·"}
WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """All that one look at the fleet gave."""

    at: datetime
    nodes: Sequence[Examined]
    findings: Mapping[str, tuple[Finding, ...]]
    """Findings by area; an area that was not asked for is absent."""
    not_checked: Mapping[str, Mapping[str, str]]
    """Reason, by area and node, why the area's checks say nothing of that node."""
    area_seconds: Mapping[str, float]
    """Seconds until all facts were collected that the area depends on."""
    seconds: float
    stage_seconds: Mapping[str, float]

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        return tuple(finding for found in self.findings.values() for finding in found)

    @property
    def unfit(self) -> bool:
        """True if a launch would be refused, would fail, or may fail for what could not be looked at."""
        return bool(self.not_checked) or any(finding.severity is Severity.ERROR for finding in self.all_findings)


def doctor_screen(report: DoctorReport, *, wide: bool = False) -> RenderableType:
    """A line for each area, then the findings of each with cause and fix, then one line for all.

    The same finding of several nodes is shown once, with `wide` once for each node.
    """
    lines = [_area_line(report, area, found) for area, found in report.findings.items()]
    blocks = [
        (Text(), Text(area, style="bold underline"), *finding_lines(found, wide=wide))
        for area, found in report.findings.items() if found
    ]  # fmt: skip
    return Group(*lines, *(line for block in blocks for line in block), Text(), _closing(report))


def doctor_data(report: DoctorReport) -> dict[str, Any]:
    """The same for programs: every fact, every finding unfolded, and whether a launch would be refused."""
    findings = [{"area": area, **asdict(finding)} for area, found in report.findings.items() for finding in found]
    return {
        "at": report.at.isoformat(timespec="seconds"),
        "unfit": report.unfit,
        "seconds": round(report.seconds, 3),
        "stage_seconds": {name: round(seconds, 3) for name, seconds in report.stage_seconds.items()},
        "not_checked": report.not_checked,
        "findings": findings,
        "nodes": [TypeAdapter(Examined).dump_python(node, mode="json") for node in report.nodes],
    }


def _area_line(report: DoctorReport, area: str, found: Sequence[Finding]) -> Text:
    """The worst that was found; a tick only where nothing was found and every node was looked at."""
    worst = next((severity for severity in MARKS if any(one.severity is severity for one in found)), None)
    gaps = report.not_checked.get(area, {})
    mark, style = ("–", "yellow") if gaps else ("✓", "green")
    line = Text(f"{MARKS[worst] if worst else mark} ", style=STYLES[worst] if worst else style)
    line.append(f"{area:<11}", style="bold" if worst else "not bold default")
    line.append(f"{report.area_seconds[area]:6.1f} s", style="not bold dim")
    words = [counts(found)] if found else []
    words += [f"not checked: {', '.join(names)} {why}" for why, names in _by_reason(gaps).items()]
    if words:
        line.append(f"   {'; '.join(words)}", style="not bold default")
    return line


def _by_reason(gaps: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of nodes by why they were not checked."""
    names: dict[str, list[str]] = {}
    for node, why in gaps.items():
        names.setdefault(why, []).append(node)
    return names


def finding_lines(found: Sequence[Finding], *, wide: bool = False) -> Iterator[RenderableType]:
    """Each finding with cause and fix: once for all nodes that have it, with `wide` once for each."""
    each = [((one.node,) if one.node else (), one) for one in found]
    for names, finding in each if wide else fold(found):
        title = Text(printable(sentence(names, finding)), style="bold")
        title.append(f"  [{finding.id}]", style="not bold dim")
        yield _hanging(Text(f"{MARKS[finding.severity]} ", style=STYLES[finding.severity]), title)
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


def folded_data(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Findings for a page: as `fold` has them, the worst first, each with its sentence."""
    order = list(MARKS)
    return [
        {
            "id": finding.id, "severity": finding.severity.value, "sentence": sentence(names, finding),
            "cause": finding.cause, "fix": finding.fix,
        }
        for names, finding in sorted(fold(findings), key=lambda one: order.index(one[1].severity))
    ]  # fmt: skip


def sentence(names: Sequence[str], finding: Finding) -> str:
    """Message of a finding, with the nodes in front where it does not name them itself."""
    named = all(_names(finding.message, name) for name in names)
    return finding.message if named else f"{', '.join(names)}: {finding.message}"


def _names(message: str, node: str) -> bool:
    """Return whether the message names the node; `a laptop` is no node of that name."""
    return re.search(rf"(?<![\w.-])(?<!\ba )(?<!\ban )(?<!\bthe ){re.escape(node)}(?![\w-])", message) is not None


def _closing(report: DoctorReport) -> Text:
    found, number = report.all_findings, len(report.nodes)
    reached = sum(node.out_of_reach is None for node in report.nodes)
    nodes = counted(number, "node") if reached == number else f"{reached} of {number} nodes"
    unknown = ", ".join(area for area in report.not_checked if area not in report.findings or not found)
    words = [counts(found)] if found else [] if unknown else ["no problems found"]
    words += [f"not everything could be checked ({unknown})"] if unknown else []
    text = f"{nodes} checked in {report.seconds:.1f} s: {'; '.join(words)}"
    return Text(text, style="bold red" if report.unfit else "bold")


def counts(found: Sequence[Finding]) -> str:
    """Numbers of the findings shown, by severity, where the same finding of several nodes is one."""
    folded = [finding.severity for _, finding in fold(found)]
    numbers = {severity: folded.count(severity) for severity in MARKS}
    return ", ".join(counted(n, WORDS[severity]) for severity, n in numbers.items() if n)
