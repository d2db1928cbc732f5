"""Runs that this controller has on record, including those with no containers left on any node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from itertools import islice

from orchestrator.fleet.runs.progress import LOOK_BACK, newest_progress
from orchestrator.fleet.runs.records import RunRecord, recorded_runs
from orchestrator.specs.errors import OrchError
from orchestrator.specs.past_run import HistoryEntry, PastRun


def recorded_history() -> list[HistoryEntry]:
    """Newest first."""
    past = []
    for record in recorded_runs():
        state, reason = record.outcome() or ("unknown", "its end was not seen from here")
        plan = record.plan()
        past.append(
            HistoryEntry(
                run_id=record.run_id,
                state=state,
                reason=reason if plan else record.unreadable or "its launch was cut short",
                started_at=plan.started_at if plan else "",
                command=shlex.join(plan.command) if plan else "",
            )
        )
    return past


def past_run(record: RunRecord, unreachable: Mapping[str, OrchError]) -> PastRun:
    """State of the run as this controller last saw it, from the record alone."""
    plan = record.plan()
    state, reason = record.outcome() or ("unknown", "its end was not seen from here")
    first = next((part.node for part in plan.nodes if part.node_rank == 0), "") if plan else ""
    newest = list(islice(record.newest(first), LOOK_BACK)) if first else []
    events = [said.event for said in reversed(newest)]
    touched = max((file.stat().st_mtime for file in record.folder.iterdir()), default=0.0)
    return PastRun(
        run_id=record.run_id,
        state=state,
        reason=reason,
        as_of=datetime.fromtimestamp(touched).astimezone().isoformat(timespec="seconds"),
        started_at=plan.started_at if plan else "",
        command=shlex.join(plan.command) if plan else "",
        nodes=tuple(part.node for part in plan.nodes) if plan else record.names,
        last_event=newest_progress(events),
        forecast=record.forecast(),
        unreachable=unreachable,
    )
