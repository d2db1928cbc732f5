"""Progress of a run from the events of its first rank, and the state of past runs from this controller's record."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice

from contract.cost_model.forecast import Forecast
from contract.events import CheckpointWritten, Event, ForecastMade, OutputProgress, ProgressEvent, ResourcesSampled
from orchestrator.checks.output_progress import newest_output
from orchestrator.checks.progress import with_figures
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.index_file import IndexFile, transaction
from orchestrator.fleet.runs.read_logs import run_line
from orchestrator.fleet.runs.records import RunRecord, recorded_runs, runs_folder
from orchestrator.specs.errors import OrchError
from orchestrator.specs.past_run import HistoryEntry, PastRun
from orchestrator.specs.secret import Veil

LOOK_BACK = 200
"""Last lines that are searched for an event: a rank writes one every few lines."""
LOOK_AHEAD = 1000
"""First lines of rank 0 that are searched for a forecast: a script of the user's has none, and may write much."""
TIMEOUT_S = 20.0
CATALOGUE_VERSION = 1
_CATALOGUE = "CREATE TABLE runs(run_id TEXT PRIMARY KEY, stamp TEXT, entry TEXT)"
UNKNOWN_END = ("unknown", "its end was not seen from here")


def last_event(containers: Sequence[RunningContainer], forecast: Forecast | None = None) -> ProgressEvent | None:
    """The last progress event of rank 0, or of the first rank that a forecast let train; None if it made none, or its
    node does not answer."""
    leading = [one for one in containers if (forecast.led_by(one.node.name) if forecast else one.node_rank == 0)]
    return newest_progress(event for one in leading for event in _events(one, tail=LOOK_BACK))


def resources_of(containers: Sequence[RunningContainer]) -> dict[str, ResourcesSampled]:
    """The newest sample of resources of each node that answers, by name."""
    outcomes = fan_out(containers, lambda one: list(_events(one, tail=LOOK_BACK)), timeout_s=TIMEOUT_S)
    return {
        outcome.item.node.name: event
        for outcome in outcomes
        for event in outcome.result or ()
        if isinstance(event, ResourcesSampled)
    }


def last_output(containers: Sequence[RunningContainer]) -> OutputProgress | None:
    """The newest progress that an agent has read from the output of a rank, of those nodes that answer."""
    outcomes = fan_out(containers, lambda one: list(_events(one, tail=LOOK_BACK)), timeout_s=TIMEOUT_S)
    return newest_output(event for outcome in outcomes for event in outcome.result or ())


def newest_progress(events: Iterable[Event | None]) -> ProgressEvent | None:
    """The last event that reports progress, completed by the figures of earlier ones."""
    newest = None
    for event in events:
        if isinstance(event, ProgressEvent):
            newest = with_figures(event, newest) if newest else event
    return newest


def forecast_of(containers: Sequence[RunningContainer], record: RunRecord) -> Forecast | None:
    """The recorded forecast, otherwise the one that rank 0 logged before its first step; None if there is none."""
    if kept := record.forecast():
        return kept
    for container in containers:
        if container.node_rank == 0:
            for event in _events(container, first=LOOK_AHEAD):
                if isinstance(event, ForecastMade):
                    return event.forecast
                if isinstance(event, ProgressEvent):
                    break
    return None


def _events(container: RunningContainer, *, tail: int | None = None, first: int | None = None) -> Iterator[Event]:
    try:
        for line in islice(container.node.engine.logs(container.id, tail=tail), first):
            if event := run_line(container, line, Veil()).event:
                yield event
    except OrchError:
        return  # the state of the run is known without them


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


def past_run(record: RunRecord, unreachable: Mapping[str, OrchError]) -> PastRun:
    """State of the run as this controller last saw it, from the record alone."""
    plan = record.plan()
    state, reason = record.outcome() or UNKNOWN_END
    first = next((part.node for part in plan.nodes if part.node_rank == 0), "") if plan else ""
    newest = list(islice(record.events(ProgressEvent, nodes={first}, newest_first=True), LOOK_BACK)) if first else []
    last = newest_progress(line.event for line in reversed(newest))
    printed = [] if last else list(islice(record.events(OutputProgress, newest_first=True), LOOK_BACK))
    return PastRun(
        run_id=record.run_id,
        state=state,
        reason=reason,
        as_of=datetime.fromtimestamp(record.touched_at()).astimezone().isoformat(timespec="seconds"),
        started_at=plan.started_at if plan else "",
        command=shlex.join(plan.command) if plan else "",
        nodes=tuple(part.node for part in plan.nodes) if plan else record.names,
        last_event=last,
        output=newest_output(line.event for line in reversed(printed)),
        forecast=record.forecast(),
        unreachable=unreachable,
    )
