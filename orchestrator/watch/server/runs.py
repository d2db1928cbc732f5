"""Runs for the page: the list, and for each run its curves, timeline and machines, in memory that stays small."""

from __future__ import annotations

import ctypes
import getpass
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

from orchestrator.checks.hang import timestamp
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.runs.find_runs import FoundRuns
from orchestrator.fleet.runs.load_state import recorded_progress, states_of
from orchestrator.fleet.runs.progress import recorded_history
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.report import GrowingReport
from orchestrator.render.printable import printable
from orchestrator.specs.errors import OrchError
from orchestrator.specs.past_run import HistoryEntry
from orchestrator.specs.run import Run
from orchestrator.state.phase import phase_of
from orchestrator.state.progress import progress_of
from orchestrator.state.verdict import Verdict, verdict
from orchestrator.watch.plain import as_json, shown
from orchestrator.watch.run_view import RESOURCES, run_view
from orchestrator.watch.view_types import RunView

MOST_RUNS, WITH_FIGURES = 200, 60
"""Runs of the list, the newest, and those of them with the figures of their newest step."""
ANSWER_POINTS = 16_000
"""Points of all curves of one answer."""
HELD_RUNS = 16
"""Runs whose curves are kept."""
WANTED_S, QUIET_S, LOOK_S = 30.0, 60.0, 1.0
"""A run is read while a page has asked for it so recently. A record that is not written to for longer than the second
is taken out of memory; it is read again when it changes."""


@dataclass(kw_only=True)
class _HeldRun:
    """Content of one run that is kept."""

    record: RunRecord
    growing: GrowingReport | None = None
    mark: object = None
    """State of the record when it was read."""
    packed: bytes = b""
    """The run for the page, as compressed JSON; empty: it is being read for the first time."""
    packed_resources: bytes = b""
    """Its curves of resources, which most answers do not need."""
    asked: float = 0.0
    """When a page asked for it last."""

    def pack(self, view: dict[str, Any]) -> None:
        curves = view["curves"]
        figures = [one for one in curves if one["group"] != RESOURCES]
        self.packed_resources = _packed([one for one in curves if one["group"] == RESOURCES])
        self.packed = _packed({**view, "curves": figures})


class RunCurves:
    """Reads the records of runs that pages show, in one thread of its own."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._held: dict[str, _HeldRun] = {}
        self._wake, self._closed = Event(), False
        Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def run(self, record: RunRecord, *, resources: bool = True) -> dict[str, Any]:
        """The run as far as it has been read; `reading`: there is more. `resources`: with the curves of resources."""
        with self._lock:
            held = self._held.pop(record.run_id, None) or _HeldRun(record=record)
            self._held[record.run_id] = held  # the one asked for last is the last
            held.asked = self._clock()
            for run_id in list(self._held)[:-HELD_RUNS]:
                del self._held[run_id]
            packed, more, growing = held.packed, held.packed_resources, held.growing
        self._wake.set()
        if packed:
            view = json.loads(zlib.decompress(packed))
            view["curves"] += json.loads(zlib.decompress(more)) if resources else []
            return {**view, "reading": False}
        return {**(run_view(growing.report()) if growing else {"run_id": record.run_id}), "reading": True}

    def _read(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            while wanted := self._wanted():
                for held in wanted:
                    self._read_one(held)
                if self._closed:
                    return
                if all(held.packed for held in self._wanted()):
                    self._wake.wait(LOOK_S)
                    self._wake.clear()

    def _wanted(self) -> list[_HeldRun]:
        with self._lock:
            now = self._clock()
            return [held for held in self._held.values() if now - held.asked < WANTED_S or not held.packed]

    def _read_one(self, held: _HeldRun) -> None:
        try:
            touched = held.record.touched_at()
            mark = (held.record.stamp(), touched)
            if mark == held.mark and held.packed:
                if time.time() - touched > QUIET_S:
                    held.growing = None
                return
            held.growing = held.growing or GrowingReport(held.record)
            if held.growing.read() or not held.packed or mark != held.mark:
                held.pack(run_view(held.growing.report()))
            held.mark = mark
            if held.record.outcome() or time.time() - touched > QUIET_S:
                held.growing = None
                _return_memory()
        except Exception as error:  # the record was removed meanwhile; the thread goes to the next run
            held.pack(_unreadable(held.record, as_error(error)))
            held.growing = None


def _return_memory() -> None:
    """Give what the reading of a record has used back to the system: glibc keeps it for each thread (ADR 48)."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


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
        own = getpass.getuser()
        for row in rows[:MOST_RUNS]:
            row["stranger"] = row["user"] if row["user"] not in ("", own) else ""
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
