"""Filter of a list of runs: those that nodes show, and those on record."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from orchestrator.checks.hang import timestamp
from orchestrator.specs.past_run import HistoryEntry
from orchestrator.specs.run import Run
from orchestrator.state.phase import Phase

STATES = tuple(phase.value for phase in Phase)
"""Phases of runs."""


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Conditions on a run, which hold together; empty: no condition."""

    states: Collection[str] = ()
    user: str = ""
    since_s: float | None = None
    """Earliest start, in seconds since 1970."""
    until_s: float | None = None
    """Latest start. A run without a known start passes neither condition."""
    name: str = ""
    """Pattern of the whole id, with `*` and `?`."""
    grep: re.Pattern[str] | None = None
    """Found in the id or in the command."""

    def passes(self, run: Run | HistoryEntry, state: str) -> bool:
        """Return whether a run in this phase is wanted."""
        at = timestamp(run.started_at)
        return (
            (not self.states or state in self.states)
            and self.user in ("", run.user)
            and (self.since_s is None or (at > 0 and at >= self.since_s))
            and (self.until_s is None or 0 < at <= self.until_s)
            and (not self.name or fnmatchcase(run.run_id, self.name))
            and (self.grep is None or any(map(self.grep.search, (run.run_id, run.command))))
        )
