"""Runs and lines that are found in the records of this controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A recorded run in the list of `orch runs`."""

    run_id: str
    state: str
    reason: str
    started_at: str
    command: str
    user: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A recorded line that a search has found, or the outcome of a run."""

    run_id: str
    time: str
    node: str
    """Empty for an outcome."""
    node_rank: int | None
    rank: int | None
    text: str
