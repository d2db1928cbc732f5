"""The newest report of progress: which one counts, and what it takes over from earlier ones."""

from __future__ import annotations

from dataclasses import fields, replace

from contract.events import CheckpointWritten, OutputProgress, ProgressEvent, TrainingStopped
from orchestrator.checks.output_progress import SILENT_S

LASTING = ("of_forecast", "compute_s", "final_step", "remaining_s")
"""Figures that not every step reports: they hold until the next report."""


def with_figures(event: ProgressEvent, earlier: ProgressEvent) -> ProgressEvent:
    """A checkpoint and a stop keep all figures of the step before, every other event the `LASTING` ones. A checkpoint
    is reported when it is written, maybe some steps later: the step never decreases."""
    keeps_all = isinstance(event, CheckpointWritten | TrainingStopped)
    figures = [one.name for one in fields(ProgressEvent) if one.name != "others"] if keeps_all else LASTING
    kept = {name: getattr(earlier, name) for name in figures if getattr(event, name) is None}
    if isinstance(event, CheckpointWritten):
        kept["step"] = max(event.step or 0, earlier.step or 0)
    return replace(event, **kept, others={**earlier.others, **event.others} if keeps_all else event.others)


def newest_output(event: OutputProgress, newest: OutputProgress | None) -> OutputProgress:
    """The newest report of the lowest rank that prints its progress, after this event."""
    return event if newest is None or _counts(event, newest) else newest


def _counts(event: OutputProgress, newest: OutputProgress) -> bool:
    if event.generation != newest.generation or _rank(event) <= _rank(newest):
        return True
    return (event.t or 0.0) - (newest.t or 0.0) > SILENT_S


def _rank(event: OutputProgress) -> float:
    return float("inf") if event.rank is None else event.rank
