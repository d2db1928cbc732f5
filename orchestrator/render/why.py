"""Cause of a run's failure, or of its waiting, for people and for programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.checks.causes import Cause
from orchestrator.checks.failure import Failure
from orchestrator.checks.hang import LastLine
from orchestrator.render.printable import printable
from orchestrator.state.postmortem import Postmortem
from orchestrator.state.rank_places import together

if TYPE_CHECKING:
    from rich.text import Text

OWNERS = {
    "configuration": "configuration: another try with the same options fails the same way",
    "user": "your code or its options: not tried again by itself",
    "infrastructure": "a machine or the network: worth another try",
}
_STATES = {
    "stopped": "was stopped on request",
    "succeeded": "has succeeded",
    "failed": "failed",
    "lost": "is lost: no node that has a part of it answers",
    "unknown": "ended in an unknown state: its containers are gone",
}
"""Words for phases; a run in any other one is in it."""


def why_lines(report: Postmortem) -> Iterator[str]:
    """Lines that `orch why` writes."""
    if report.failure:
        yield from _failed(report, report.failure)
    else:
        yield f"run {report.run_id} {_state(report)}"
    yield from (f"  {printable(sentence)}" for sentence in report.liveness)
    if report.places:
        verb = "was" if report.state in ("failed", "unknown", "lost") else "is"
        yield from ("", f"  where each rank {verb}")
        ages = (f"  {_span(place.age_s)} ago" if place.age_s is not None else "" for place in report.places)
        yield from (f"    {printable(place.text)}{age}" for place, age in zip(report.places, ages, strict=True))
        yield from (f"    {line}" for line in [together(report.places)] if line)
    if lines := [one for one in report.heard if one.silent_s is not None]:
        yield from ("", "  last line of each rank")
        yield from (f"    {_last(one)}" for one in sorted(lines, key=lambda one: -(one.silent_s or 0.0)))
    yield from (f"  · {sentence}" for sentence in report.waits)
    if report.earlier:
        yield from ("", "  it survived before")
    for survived in report.earlier:
        rank = "" if survived.rank is None else f"rank {survived.rank} on "
        yield f"    {survived.time[11:19]}  {rank}{survived.node}: {survived.reason or survived.owner}"
    if report.silent:
        yield f"  note: {', '.join(report.silent)} did not answer; this rests on what was collected before"
    if report.state not in ("succeeded", "stopped"):
        yield f"  → {logs_command(report.run_id, report.failure)}"


def logs_command(run_id: str, failure: Failure | None) -> str:
    """The command that shows the lines of the node that failed; those of all nodes where none is known."""
    return f"orch logs {run_id}" + (f" --nodes {shlex.quote(failure.node)}" if failure and failure.node != "?" else "")


def why_text(line: str) -> Text:
    """A line of `why_lines` for a terminal: the failure and what to do stand out."""
    from rich.text import Text  # a page has no need of it

    styles = {"✗": "bold red", "→": "green", "more:": "dim", "after that:": "dim"}
    return Text(line, next((style for sign, style in styles.items() if line.lstrip().startswith(sign)), ""))


def _failed(report: Postmortem, failure: Failure) -> Iterator[str]:
    when = f" at {report.at[11:19]}" if report.at else ""
    after = f", {_span(report.after_s)} after its start" if report.after_s is not None else ""
    state = "failed" if report.state == "failed" else f"{_state(report)}; it has a failure"
    yield f"run {report.run_id} {state}{when}{after}"
    yield f"✗ {headline(failure)}"
    if failure.cause:
        yield from cause_lines(failure.cause)
    else:
        yield from (f"    {line}" for line in failure.lines)
    yield from (f"  after that: {sentence}" for sentence in report.consequences)


def _state(report: Postmortem) -> str:
    return _STATES.get(report.state, f"is {report.state}")


def headline(failure: Failure) -> str:
    """Rank or node that failed, and how, in one line."""
    who = f"rank {failure.rank} on {failure.node}" if failure.rank >= 0 else failure.node
    is_known = failure.exit_code is None or failure.reason == f"exit code {failure.exit_code}"
    reason = _without_source(failure.reason.split("\n", 1)[0])
    return f"{who}: {reason}" + ("" if is_known else f" (exit code {failure.exit_code})")


def cause_lines(cause: Cause) -> Iterator[str]:
    """Meaning of a cause, where it happened, by which lines, and what to do."""
    yield f"  {cause.explanation}"
    if cause.frame:
        yield f"  where     {cause.frame}"
    for number, line in enumerate(cause.evidence):
        yield ("  evidence  " if not number else "            ") + _without_source(line)
    yield f"  owner     {OWNERS[cause.owner]}"
    yield from (f"  → {step}" for step in cause.fix)
    yield f"  more: orch explain {cause.finding or cause.id}"


def why_data(report: Postmortem) -> dict[str, Any]:
    """The same for programs."""
    return asdict(report)


def _without_source(text: str) -> str:
    """Remove the place in torch's or gloo's own source, which is longer than the message."""
    return re.sub(r"(?:at )?\[?/\S{1,300}\.(?:cc|cpp|hpp|cu):\d+\] ", "", text)


def _last(one: LastLine) -> str:
    silent = f"{_span(one.silent_s or 0.0)} ago"
    return f"rank {one.rank} on {one.node:<10} {silent:>12}  {_without_source(one.word)[:90]}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
