"""The report of a run from its record on this controller: no node is asked."""

from __future__ import annotations

import time
from itertools import islice
from threading import Lock

from orchestrator.fleet.runs.records import RunRecord
from orchestrator.specs.run_events import RunLine
from orchestrator.state.run_history import RunHistory
from orchestrator.state.run_report import RunReport
from orchestrator.store.events import EventCursor

AT_ONCE = 500
"""Events that are read between two moments at which another thread may ask for the report."""


def report_of(record: RunRecord) -> RunReport:
    """The report; the lines are read once, in memory that does not grow with the run."""
    history = RunHistory(record.plan())
    for line in record.lines():
        history.add(line)
    notes = (f"plan: {record.unreadable}",) if record.unreadable else ()
    return history.report(
        record.run_id, journal=record.journal, forecast=record.forecast(), now=time.time(), notes=notes
    )


class GrowingReport:
    """The report of a run from its events alone, which are read as they come. One thread reads, any may ask."""

    def __init__(self, record: RunRecord) -> None:
        self._record, self._lock = record, Lock()
        self._begin()

    def _begin(self) -> None:
        self._stamp = self._record.stamp()
        self._history, self._cursor = self._new_history(), EventCursor()

    def _new_history(self) -> RunHistory:
        return RunHistory(self._record.plan(), figures_as_evidence=False)

    def read(self) -> bool:
        """Read the events that are new, and return whether there were any. A new attempt, or an index that was made
        again, begins the report again."""
        changed = self._record.stamp() != self._stamp
        if changed:
            self._begin()
        lines = self._record.new_events(self._cursor)
        while some := list(islice(lines, AT_ONCE)):
            with self._lock:
                for line in some:
                    changed |= self._add(line)
        return changed

    def _add(self, line: RunLine | None) -> bool:
        if line is None:
            self._history = self._new_history()
            return False
        self._history.add(line)
        return True

    def report(self) -> RunReport:
        """The report of what has been read so far."""
        with self._lock:
            return self._history.report(
                self._record.run_id, journal=self._record.journal, forecast=self._record.forecast(), now=time.time()
            )
