"""Runs that this controller saw, their containers gone or not."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from orchestrator.fleet.runs.records import recorded_runs


@dataclass(frozen=True, kw_only=True)
class Past:
    """One line of history."""

    run_id: str
    state: str
    reason: str
    started_at: str
    command: str


def remembered() -> list[Past]:
    """Newest first."""
    past = []
    for record in recorded_runs():
        state, reason = record.outcome() or ("unknown", "its end was not seen from here")
        plan = record.plan()
        past.append(
            Past(
                run_id=record.run_id,
                state=state,
                reason=reason if plan else record.unreadable or "its launch was cut short",
                started_at=plan.started_at if plan else "",
                command=shlex.join(plan.command) if plan else "",
            )
        )
    return past
