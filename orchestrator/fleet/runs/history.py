"""Runs that this controller saw, their containers gone or not."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from orchestrator.fleet.runs.records import recorded_runs
from orchestrator.specs.errors import ConfigError


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
        try:
            plan = record.plan()
        except ConfigError as error:  # one bad file hides no other run
            past.append(Past(run_id=record.run_id, state=state, reason=error.message, started_at="", command=""))
            continue
        if plan:
            command = shlex.join(plan.command)
            past.append(
                Past(run_id=plan.run_id, state=state, reason=reason, started_at=plan.started_at, command=command)
            )
    return past
