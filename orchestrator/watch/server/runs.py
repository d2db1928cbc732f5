"""Runs for the page: the list, and for each run its curves, timeline and machines, in memory that stays small."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from orchestrator.checks.hang import timestamp
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.runs.find_runs import FoundRuns
from orchestrator.fleet.runs.load_state import recorded_history, recorded_progress, states_of
from orchestrator.render.printable import printable
from orchestrator.specs.errors import OrchError
from orchestrator.specs.past_run import HistoryEntry
from orchestrator.specs.run import Run
from orchestrator.state.phase import phase_of
from orchestrator.state.progress import progress_of
from orchestrator.state.verdict import Verdict, verdict
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.plain import as_json, shown
from orchestrator.watch.report import GrowingReport
from orchestrator.watch.run_view import RESOURCES, run_view
from orchestrator.watch.views import RunView

MOST_RUNS, WITH_FIGURES = 200, 60
"""Runs of the list, the newest, and those of them with the figures of their newest step."""
ANSWER_POINTS = 16_000
"""Points of all curves of one answer."""
HELD_RUNS = 16
"""Runs whose curves are kept."""
BUDGET_S = 1.0
"""Time after which an answer begins to read no further run. A run of 100,000 steps takes longer, for the first time."""
WANTED_S = 30.0
"""Time after the last question for a run until the next one begins to read it again."""


@dataclass(kw_only=True)
class _HeldRun:
    """Content of one run that is kept."""

    growing: GrowingReport | None = None
    """Takes MiB; None of a run that has ended."""
    mark: object = None
    """State of the record when it was read."""
    packed: bytes = b""
    """The run for the page, as compressed JSON."""
    packed_resources: bytes = b""
    """Its curves of resources, which most answers do not need."""
    asked: float = 0.0
    """Time when a page asked for it last."""

    def read(self, record: RunRecord) -> None:
        """Read what is new."""
        mark = (record.stamp(), record.touched_at())
        if mark == self.mark:
            return
        self.growing = self.growing or GrowingReport(record)
        self.growing.read()
        view = run_view(self.growing.report())
        self.packed_resources = _packed([one for one in view["curves"] if one["group"] == RESOURCES])
        self.packed = _packed({**view, "curves": [one for one in view["curves"] if one["group"] != RESOURCES]})
        self.mark = mark
        if record.outcome():
            self.growing = None

    def view(self, *, resources: bool) -> dict[str, Any]:
        view: dict[str, Any] = json.loads(zlib.decompress(self.packed))
        view["curves"] += json.loads(zlib.decompress(self.packed_resources)) if resources else []
        return view


class RunCurves:
    """Reads the records of runs that pages show, when they ask: one at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._held: dict[str, _HeldRun] = {}

    def runs(self, records: Iterable[RunRecord], *, resources: bool = True) -> list[dict[str, Any]]:
        """The runs; `reading`: one is read for the next answer. `resources`: with the curves of resources."""
        until = self._clock() + BUDGET_S
        return [self._run(record, until, resources=resources) for record in records]

    def _run(self, record: RunRecord, until: float, *, resources: bool) -> dict[str, Any]:
        with self._lock:
            now = self._clock()
            if record.run_id not in self._held and now > until:
                return {"run_id": record.run_id, "reading": True}
            held = self._held.pop(record.run_id, None) or _HeldRun()
            self._held[record.run_id] = held  # the one asked for last is the last
            held.asked = now
            for run_id in list(self._held)[:-HELD_RUNS]:
                del self._held[run_id]
            for other in self._held.values():
                other.growing = other.growing if now - other.asked < WANTED_S else None
            try:
                held.read(record)
                return {**held.view(resources=resources), "reading": False}
            except Exception as error:  # one record does not hide the other runs
                held.growing = None
                return {**_unreadable(record, as_error(error)), "reading": False}


def _packed(data: Any) -> bytes:
    return zlib.compress(as_json(data), 1)


class RunList:
    """All runs, newest first: those on the nodes, then those on record."""

    def __init__(self) -> None:
        self._figures: dict[str, tuple[float, dict[str, Any]]] = {}

    def data(self, found: FoundRuns | None, live: RunView | None = None) -> dict[str, Any]:
        """The list. `found`: what the nodes have answered, None as long as they have not; `live`: the run that is
        watched, of which more is known than of others."""
        history = {entry.run_id: entry for entry in recorded_history()}
        now = time.time()
        on_nodes = states_of(found, now) if found else []
        rows = [_on_nodes(run, verdict(state, now)) for run, state in on_nodes]
        known = {run.run_id for run, _ in on_nodes}
        rows += [_on_record(entry) for run_id, entry in history.items() if run_id not in known]
        for row in rows:
            if live and live.is_on_nodes and row["run_id"] == live.run_id:
                row |= {"state": live.phase.value, "reason": live.reason, "active": live.phase.is_active}
        rows.sort(key=lambda row: (not row["active"], -row["began"]))
        for row in rows[:WITH_FIGURES]:
            if row["run_id"] in history:
                row |= self._newest(row["run_id"])
        silent = {name: error.message for name, error in found.unreachable.items()} if found else {}
        data = {"runs": rows[:MOST_RUNS], "more": max(0, len(rows) - MOST_RUNS), "unreachable": silent}
        return {**shown(data), "asked": found is not None}

    def _newest(self, run_id: str) -> dict[str, Any]:
        """Step and loss of the newest progress on record."""
        record = RunRecord(run_id)
        try:
            touched = record.touched_at()
        except OSError:
            return {}
        known = self._figures.get(run_id)
        if known is None or known[0] != touched:
            now = time.time()
            state = recorded_progress(record, now)
            last = progress_of(state, phase_of(state), now)
            by_events = last.origin == "event"
            figures = {"step": last.step, "final_step": last.final_step, "loss": last.loss} if by_events else {}
            self._figures[run_id] = known = (touched, figures)
        return known[1]


def _on_nodes(run: Run, judged: Verdict) -> dict[str, Any]:
    return {
        "run_id": run.run_id, "state": judged.phase.value, "reason": judged.reason, "active": judged.phase.is_active,
        "started_at": run.started_at, "began": timestamp(run.started_at), "command": run.command, "user": run.user,
        "nodes": [member.node for member in run.members], "attempt": run.attempt, "on_nodes": True,
    }  # fmt: skip


def _on_record(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "run_id": entry.run_id, "state": entry.state, "reason": entry.reason, "active": False,
        "started_at": entry.started_at, "began": timestamp(entry.started_at), "command": entry.command,
        "user": entry.user, "nodes": list(entry.nodes), "attempt": None, "on_nodes": False,
    }  # fmt: skip


def _unreadable(record: RunRecord, error: OrchError) -> dict[str, Any]:
    text = printable(f"the record cannot be read: {error.message}")
    return {"run_id": record.run_id, "state": "unknown", "reason": text, "curves": []}
