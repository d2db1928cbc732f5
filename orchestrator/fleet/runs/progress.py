"""Runs on record: their list, and the newest checkpoint of one."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict

from contract.events import CheckpointWritten
from orchestrator.fleet.runs.index_file import IndexFile, transaction
from orchestrator.fleet.runs.records import RunRecord, recorded_runs, runs_folder
from orchestrator.specs.past_run import HistoryEntry

CATALOGUE_VERSION = 1
_CATALOGUE = "CREATE TABLE runs(run_id TEXT PRIMARY KEY, stamp TEXT, entry TEXT)"
UNKNOWN_END = ("unknown", "its end was not seen from here")


def last_checkpoint(record: RunRecord) -> tuple[int, str] | None:
    """Step and node of the last verified checkpoint among the lines of the node that leads the run."""
    current = record.journal.current
    for line in record.events(CheckpointWritten, newest_first=True):
        event = line.event
        if not isinstance(event, CheckpointWritten) or not event.verified or event.step is None:
            continue
        if current is None or record.leads(line.node, current.number):
            return event.step, line.node
    return None


def recorded_history() -> list[HistoryEntry]:
    """All runs on record, newest first, including those with no containers left on any node. Plans that were read
    before and have not changed since are not read again."""
    records = recorded_runs()
    catalogue = IndexFile(path=runs_folder() / "catalogue.sqlite", version=CATALOGUE_VERSION, tables=_CATALOGUE)
    known = {
        (run_id, stamp): entry
        for run_id, stamp, entry in catalogue.read(lambda database: database.execute("SELECT * FROM runs"))
    }
    past, new = list[HistoryEntry](), list[tuple[str, str, str]]()
    for record in records:
        stamp = record.stamp()
        entry = _entry(known.get((record.run_id, stamp), ""))
        if entry is None:
            entry, readable = _read_entry(record)
            new += [(record.run_id, stamp, json.dumps(asdict(entry)))] if readable else []
        past.append(entry)
    if new:
        catalogue.update(lambda database: _remember(database, new))
    return past


def _remember(database: sqlite3.Connection, entries: Sequence[tuple[str, str, str]]) -> None:
    with transaction(database):
        database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", entries)


def _read_entry(record: RunRecord) -> tuple[HistoryEntry, bool]:
    """The run in the list, and whether its plan can be read."""
    state, reason = record.outcome() or UNKNOWN_END
    plan = record.plan()
    entry = HistoryEntry(
        run_id=record.run_id,
        state=state,
        reason=reason if plan else record.unreadable or "its launch was cut short",
        started_at=plan.started_at if plan else "",
        command=shlex.join(plan.command) if plan else "",
        user=plan.user if plan else "",
        nodes=tuple(part.node for part in plan.nodes) if plan else (),
    )
    return entry, plan is not None


def _entry(text: str) -> HistoryEntry | None:
    """An entry of the catalogue; None where there is none, or not of this version."""
    try:
        values = json.loads(text)
        return HistoryEntry(**{**values, "nodes": tuple(map(str, values["nodes"]))})
    except (ValueError, TypeError, KeyError):
        return None
