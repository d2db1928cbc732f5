"""View of machines and the run on them, for `orch monitor` and the page; and the same as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.state.condition import SEVERITIES, Code, Condition, Severity
from orchestrator.state.phase import Phase
from orchestrator.state.run_state import TailLine
from orchestrator.watch.timeline import TimelineEntry
from orchestrator.watch.views import NodeView, RunView
from orchestrator.watch.words import end_words, is_part_of_end, words

FIGURES = {
    "step": "step", "final_step": "final_step", "progress": "share", "step_age_s": "age_s",
    "remaining_s": "remaining_s", "loss": "loss", "losses": "losses", "per_s": "per_s", "unit": "unit",
    "of_forecast": "of_forecast", "waiting": "waiting", "exchanging": "exchanging", "restarting": "is_before_restart",
    "work": "work", "last_line": "last_line",
}  # fmt: skip
"""Figures of a run, by key in JSON."""


@dataclass(frozen=True, kw_only=True)
class HealthLine:
    """One thing that is wrong, or worth knowing."""

    severity: Severity
    about: str = ""
    """The run, where the sentence does not name its subject; otherwise empty."""
    text: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Health:
    """Health of the fleet in a word."""

    severity: Severity
    lines: tuple[HealthLine, ...] = ()
    """The most severe first."""
    fine: str = ""
    """A sentence where nothing is wrong."""


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """All that is known at one moment."""

    at: float
    """Seconds since 1970, by this computer's clock."""
    looked: bool
    """True if the nodes have been asked for runs."""
    run: RunView | None
    nodes: tuple[NodeView, ...]
    """The nodes that are watched, in order."""
    faults: tuple[TimelineEntry, ...] = ()
    """The newest faults and recoveries, in order of time."""

    @property
    def health(self) -> Health:
        """Everything that is wrong with the run, and with nodes that are no part of it."""
        lines = sorted((*_of_run(self.run), *_of_nodes(self)), key=lambda one: -SEVERITIES.index(one.severity))
        worst: Severity = max([self.run.severity if self.run else "ok", *(one.severity for one in lines)],
                              key=SEVERITIES.index)  # fmt: skip
        if not lines and (waiting := [one.name for one in self.nodes if one.answered_s is None]):
            line = HealthLine(severity="info", text=f"no answer yet from {', '.join(waiting)}")
            return Health(severity="info", lines=(line,))
        return Health(severity=worst, lines=tuple(lines), fine="" if lines else _fine(len(self.nodes)))

    def data(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "at": self.at,
            "looked": self.looked,
            "run": self.run and run_data(self.run),
            "nodes": [{**asdict(one), "note": one.note} for one in self.nodes],
            "faults": [asdict(one) for one in self.faults],
            "health": asdict(self.health),
        }


def run_data(run: RunView) -> dict[str, Any]:
    """A run for JSON, its figures beside its state."""
    return {
        "run_id": run.run_id,
        "state": run.phase.value,
        "active": run.phase.is_active,
        "severity": run.severity,
        "conditions": [asdict(one) for one in run.conditions],
        "reason": run.reason,
        "attempt": run.attempt,
        "command": run.command,
        "user": run.user,
        "started_at": run.started_at,
        "as_of": "" if run.is_on_nodes or run.last_at is None else _iso(run.last_at),
        "restarts": run.restarts,
        "checkpoint": run.checkpoint and asdict(run.checkpoint),
        **{key: getattr(run.progress, name) for key, name in FIGURES.items()},
        "output": run.output,
    }


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _fine(nodes: int) -> str:
    """All nodes answer, and no condition of the run is known."""
    answer = {0: "", 1: "The node answers", 2: "Both nodes answer"}.get(nodes, f"All {nodes} nodes answer")
    return answer and f"{answer}; nothing is wrong."


def _of_run(run: RunView | None) -> Iterator[HealthLine]:
    if run is None:
        return
    if ended := end_words(run.phase, run.reason, run.run_id):
        severity: Severity = "warning" if run.phase is Phase.UNKNOWN else "error"
        yield HealthLine(severity=severity, about=f"run {run.run_id}", text=ended.text, command=ended.command)
    for one in run.conditions:
        if not is_part_of_end(one.code, run.phase):
            yield HealthLine(severity=one.severity, text=one.text, command=one.command)


def _of_nodes(shown: FleetView) -> Iterator[HealthLine]:
    """Nodes that do not answer, and are no part of the run: the verdict on it does not depend on them."""
    known = {one.node for one in shown.run.conditions if one.code == Code.NODE_SILENT} if shown.run else set()
    for one in shown.nodes:
        if one.silent and one.name not in known:
            found = words(Condition(code=Code.NODE_SILENT, severity="warning", node=one.name,
                                    values={"error": one.problem}), "")  # fmt: skip
            yield HealthLine(severity="warning", text=found.text, command=found.command)


LAST_LINES = 14
"""Newest lines of the run's ranks and agents, all nodes together."""


def now_view(shown: FleetView, tail: Callable[[str], Iterable[TailLine]]) -> dict[str, Any]:
    """The view for the page. `tail`: the newest log lines of a node."""
    data = shown.data()
    if shown.run:
        data["run"]["place"] = _place(shown.run)
    return {**data, "lines": last_lines((node.name for node in shown.nodes), tail)}


def _place(run: RunView) -> str:
    """Step of the run, or epoch and step as its output has them, and its optimizer steps; loss, speed and time left are
    fields of their own."""
    figures = run.progress
    if run.output:
        words = run.output.partition("   ")[0].split(" · ")
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
