"""The report of a run from its record on this controller: no node is asked."""

from __future__ import annotations

import time
from itertools import islice

from contract.event_lines import kind_in
from orchestrator.state.conditions import data_conditions
from orchestrator.state.run_history import LinesOnRecord, RunHistory
from orchestrator.state.run_report import RunReport
from orchestrator.store.events import EventCursor
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.evidence import event_lines, evidence_lines
from orchestrator.watch.words import words

LAST_LINES, LINES_READ = 60, 100_000
"""Lines of a report that are no events, and the newest lines among which they are looked for."""


def report_of(record: RunRecord) -> RunReport:
    """The report: all events are read, and of the other lines the last ones."""
    growing = GrowingReport(record)
    growing.read()
    first, last = next(record.lines(), None), next(record.lines(newest_first=True), None)
    ordinary = (line for line in islice(record.lines(newest_first=True), LINES_READ) if not kind_in(line.text))
    return growing.report(
        LinesOnRecord(
            evidence=evidence_lines(record, growing.plan),
            last=tuple(islice(ordinary, LAST_LINES))[::-1],
            first_time=first.time if first else "",
            last_time=last.time if last else "",
            number=record.count_lines(),
        )
    )


class GrowingReport:
    """The report of a run from its events alone, which are read as they come."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._begin()

    def _begin(self) -> None:
        self._stamp, self.plan, self._cursor = self._record.stamp(), self._record.plan(), EventCursor()
        self._history = RunHistory(self.plan)

    def read(self) -> bool:
        """Read the events that are new, and return whether there were any. A new attempt, or a table of events that was
        made again, begins the report again."""
        if changed := self._record.stamp() != self._stamp:
            self._begin()
        for line in self._record.new_events(self._cursor):
            if line is None:
                self._history = RunHistory(self.plan)
            else:
                changed = True
                self._history.add(line)
        return changed

    def report(self, lines: LinesOnRecord | None = None) -> RunReport:
        """The report of what has been read so far. Without `lines`, a post-mortem has events alone."""
        record = self._record
        journal = record.journal
        attempt = journal.current.number if journal.current else None
        data = data_conditions(journal.damaged, attempt, is_active=False)
        return self._history.report(
            record.run_id,
            journal=journal,
            forecast=record.forecast(),
            now=time.time(),
            lines=lines or LinesOnRecord(evidence=tuple(event_lines(record))),
            notes=(
                *([f"plan: {record.unreadable}"] if record.unreadable else []),
                *(words(one, record.run_id).text for one in data),
            ),
        )
