"""Data of the view of a run: what every screen shows of it, safe to show."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.state.condition import Severity
from orchestrator.state.phase import Phase
from orchestrator.watch.node_view import NodeView
from orchestrator.watch.timeline import TimelineEntry


@dataclass(frozen=True, kw_only=True)
class ConditionView:
    """A condition with its words."""

    code: str
    severity: Severity
    node: str = ""
    """Empty: about the run."""
    rank: int | None = None
    since: float | None = None
    """Seconds since 1970."""
    text: str
    command: str = ""
    """Next command; empty: there is none."""


@dataclass(frozen=True, kw_only=True)
class ProgressFigures:
    """Progress of a run. None: not known, or not reported."""

    step: int | None = None
    final_step: int | None = None
    share: float | None = None
    """Part of the training that is done, from 0 to 1."""
    step_age_s: float | None = None
    """Since the newest report of progress."""
    remaining_s: float | None = None
    """None, too, while the run makes no progress, or one of its nodes is silent."""
    loss: float | None = None
    losses: tuple[float, ...] = ()
    """Losses of the newest reports, the newest last."""
    per_s: float | None = None
    unit: str = ""
    of_forecast: float | None = None
    waiting: float | None = None
    exchanging: float | None = None
    """Shares of the time, from 0 to 1, in which the reporting rank waits for data, and for the other nodes."""
    is_before_restart: bool = False
    """Whether no report has come since the newest restart."""
    output: str = ""
    """Progress read from the output, in words, where the program's own events report none."""
    work: str = ""
    """Optimizer steps and their speed, in words, where the program's own events report no steps."""
    last_line: str = ""
    """The newest log line of a rank, where it says more than steps do: before the first, and while none comes."""


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """The newest verified checkpoint of the leading rank's node."""

    step: int
    node: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as it is known now. All text is safe to show."""

    run_id: str
    phase: Phase
    severity: Severity
    conditions: tuple[ConditionView, ...]
    """The most severe first."""
    reason: str = ""
    """Why it ended, as recorded, or as its coordinator reports it."""
    is_on_nodes: bool = True
    """Whether nodes show it; otherwise all is from the record on this computer."""
    last_at: float | None = None
    """When its newest line was written, in seconds since 1970."""
    attempt: int | None = None
    command: str = ""
    user: str = ""
    started_at: str = ""
    restarts: int = 0
    progress: ProgressFigures
    nodes: tuple[NodeView, ...]
    timeline: tuple[TimelineEntry, ...]
    checkpoint: CheckpointView | None = None
