"""A run that is known only from the record of this controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contract.cost_model.forecast import Forecast
from contract.events import OutputProgress, ProgressEvent
from orchestrator.specs.errors import OrchError


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """State of a run according to its record."""

    run_id: str
    state: str
    reason: str
    as_of: str
    """Time of the newest thing on record, ISO 8601 with offset."""
    started_at: str
    command: str
    nodes: tuple[str, ...]
    last_event: ProgressEvent | None
    forecast: Forecast | None
    unreachable: Mapping[str, OrchError]
    """Nodes that gave no answer: the run may be there."""
    output: OutputProgress | None = None
    """Progress read from its output; None where its own events report some."""


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
