"""Runs on record: their list, and the newest checkpoint of one."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress

from contract.events import CheckpointWritten
from orchestrator.fleet.runs.load_state import recorded_phase
from orchestrator.fleet.runs.records import RunRecord, recorded_runs
from orchestrator.specs.past_run import HistoryEntry

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
    """All runs on record, newest first, including those with no containers left on any node."""
    return [_entry(record) for record in recorded_runs()]


def _entry(record: RunRecord) -> HistoryEntry:
    """The run in the list."""
    state, reason = record.outcome() or (recorded_phase(record, time.time()).value, UNKNOWN_END[1])
    if plan := record.plan_values():
        with suppress(KeyError, TypeError):
            return HistoryEntry(
                run_id=record.run_id,
                state=state,
                reason=reason,
                started_at=str(plan["started_at"]),
                command=shlex.join(plan["command"]),
                user=str(plan["user"]),
                nodes=tuple(str(part["node"]) for part in plan["nodes"]),
            )
    reason = record.unreadable or "its launch was cut short"
    return HistoryEntry(run_id=record.run_id, state=state, reason=reason, started_at="", command="")
