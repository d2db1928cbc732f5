"""Figures of the machines and of the runs that they hold, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contract.events import ProgressEvent, ResourcesSampled
from orchestrator.specs.errors import OrchError
from orchestrator.specs.run import Run


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """A run; its newest figures only while it is running."""

    run: Run
    last_event: ProgressEvent | None = None
    resources: Mapping[str, ResourcesSampled]
    """The newest sample of each node."""


@dataclass(frozen=True, kw_only=True)
class FleetFigures:
    nodes: tuple[str, ...]
    unreachable: Mapping[str, OrchError]
    runs: tuple[RunFigures, ...]
    """All runs with containers, newest first."""
    seconds: float
    """Time that collecting them took."""
