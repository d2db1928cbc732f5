"""Progress of a run from the events of its first rank: the newest event, and the forecast made at the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice

from contract.cost_model.forecast import Forecast
from contract.events import CheckpointWritten, Event, ForecastMade, ProgressEvent, TrainingStopped
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.read_logs import said_of
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.specs.errors import OrchError
from orchestrator.specs.secret import Veil

LASTING = ("of_forecast", "compute_s")
"""Figures that not every step reports: they hold until the next report."""
LOOK_BACK = 200
"""Lines of it that are searched: it writes an event every few lines."""
LOOK_AHEAD = 1000
"""Lines of rank 0 among which a forecast is, if there is one: a script of the user's has none, and may say much."""


def last_event(containers: Sequence[RunningContainer], forecast: Forecast | None = None) -> ProgressEvent | None:
    """The last event that tells of progress, of rank 0, or of the first that a forecast let train; None where it has
    made none, or cannot be asked."""
    leading = [one for one in containers if (forecast.led_by(one.node.name) if forecast else one.node_rank == 0)]
    return newest_progress(event for one in leading for event in _events(one, tail=LOOK_BACK))


def newest_progress(events: Iterable[Event | None]) -> ProgressEvent | None:
    """The last event that reports progress, completed by the figures of earlier ones."""
    newest = None
    for event in events:
        if isinstance(event, ProgressEvent):
            newest = _with_figures(event, newest) if newest else event
    return newest


def forecast_of(containers: Sequence[RunningContainer], record: RunRecord) -> Forecast | None:
    """The recorded forecast, otherwise the one that rank 0 logged before its first step; None if there is none."""
    if kept := record.forecast():
        return kept
    for container in containers:
        if container.node_rank == 0:
            for event in _events(container, first=LOOK_AHEAD):
                if isinstance(event, ForecastMade):
                    return event.forecast
                if isinstance(event, ProgressEvent):
                    break
    return None


def _events(container: RunningContainer, *, tail: int | None = None, first: int | None = None) -> Iterator[Event]:
    try:
        for line in islice(container.node.engine.logs(container.id, tail=tail), first):
            if event := said_of(container, line, Veil()).event:
                yield event
    except OrchError:
        return  # how the run is, is known without


def _with_figures(event: ProgressEvent, earlier: ProgressEvent) -> ProgressEvent:
    """A checkpoint and a stop keep all figures of the step before, every other event keeps the `LASTING` ones. A
    checkpoint is reported once it is written, which may be some steps later: the step never decreases."""
    keeps_all = isinstance(event, CheckpointWritten | TrainingStopped)
    figures = [one.name for one in fields(ProgressEvent) if one.name != "others"] if keeps_all else LASTING
    kept = {name: getattr(earlier, name) for name in figures if getattr(event, name) is None}
    if isinstance(event, CheckpointWritten):
        kept["step"] = max(event.step or 0, earlier.step or 0)
    return replace(event, **kept, others={**earlier.others, **event.others} if keeps_all else event.others)


def last_checkpoint(record: RunRecord) -> tuple[int, str] | None:
    """Step and node of the last verified checkpoint on record."""
    found = None
    for line in record.lines():
        if isinstance(line.event, CheckpointWritten) and line.event.verified and line.event.step is not None:
            found = line.event.step, line.node
    return found
