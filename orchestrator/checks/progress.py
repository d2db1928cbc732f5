"""Figures of the newest progress event, completed by those of earlier ones."""

from __future__ import annotations

from dataclasses import fields, replace

from contract.events import CheckpointWritten, ProgressEvent, TrainingStopped

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
