"""Figures of the machines and of the runs that they hold, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.specs.errors import OrchError
from orchestrator.state.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class FleetFigures:
    nodes: tuple[str, ...]
    unreachable: Mapping[str, OrchError]
    runs: tuple[RunState, ...]
    """All runs with containers, newest first."""
    at: float
    """Seconds since 1970."""
    seconds: float
    """Time that collecting them took."""
