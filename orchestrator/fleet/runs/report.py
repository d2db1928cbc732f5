"""The report of a run from its record on this controller: no node is asked."""

from __future__ import annotations

from orchestrator.checks.run_history import RunHistory
from orchestrator.checks.run_report import RunReport
from orchestrator.fleet.runs.records import RunRecord, record_of, recorded_runs
from orchestrator.specs.errors import ConfigError


def recorded_run(wanted: str | None) -> RunRecord:
    """The record of the run with this id or beginning of an id; of the newest where none is named.

    ConfigError: there is none, or there are several.
    """
    if wanted is not None:
        return record_of(wanted)
    if records := recorded_runs():
        return records[0]
    raise ConfigError("this computer has no record of any run", hint="orch launch")


def report_of(record: RunRecord) -> RunReport:
    """The report; the lines are read once, in memory that does not grow with the run."""
    history = RunHistory(record.plan())
    for line in record.lines():
        history.add(line)
    notes = (f"plan: {record.unreadable}",) if record.unreadable else ()
    return history.report(record.run_id, outcome=record.outcome(), forecast=record.forecast(), notes=notes)
