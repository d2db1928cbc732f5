"""How far a run is, by what its first rank wrote: its newest event, and what was expected at the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from contract.log_lines import split_rank
from orchestrator.fleet.runs.launch import Seated
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.specs.errors import OrchError
from orchestrator.specs.event import Event, parse_event
from orchestrator.specs.forecast import Forecast, read_forecast

PROGRESS = ("step", "evaluation", "checkpoint", "stopped", "done")
LASTING = ("of_forecast", "compute_s")
"""Figures that not every event of a step tells, and that count until others are told."""
LOOK_BACK = 200
"""Lines of it that are searched: it writes an event every few lines."""
LOOK_AHEAD = 1000
"""Lines of rank 0 among which a forecast is, if there is one: a script of the user's has none, and may say much."""


def last_event(seated: Sequence[Seated], forecast: Forecast | None = None) -> Event | None:
    """The last event that tells of progress, of rank 0, or of the first that a forecast let train; None where it has
    made none, or cannot be asked."""
    leading = [seat for seat in seated if (forecast.led_by(seat.node.name) if forecast else seat.node_rank == 0)]
    return newest_progress(event for seat in leading for event in _events(seat, tail=LOOK_BACK))


def newest_progress(events: Iterable[Event]) -> Event | None:
    """The last of them that tells of progress, with the figures that it leaves to earlier ones."""
    newest = None
    for event in events:
        if event.kind in PROGRESS:
            newest = _with_figures(event, newest) if newest else event
    return newest


def forecast_of(seated: Sequence[Seated], record: RunRecord) -> Forecast | None:
    """As this controller kept it; else as rank 0 told it before its first step. None where it told none there."""
    if kept := record.forecast():
        return kept
    for seat in seated:
        if seat.node_rank == 0:
            for event in _events(seat, first=LOOK_AHEAD):
                if event.kind == "forecast":
                    return read_forecast(event.values)
                if event.kind in PROGRESS:
                    break
    return None


def _events(seat: Seated, *, tail: int | None = None, first: int | None = None) -> Iterator[Event]:
    try:
        for line in islice(seat.node.engine.logs(seat.container, tail=tail), first):
            rank, text = split_rank(line.text)
            if event := parse_event(text, rank):
                yield event
    except OrchError:
        return  # how the run is, is known without


def _with_figures(event: Event, earlier: Event) -> Event:
    """An event that tells no loss (a checkpoint) keeps that of the step before; the last one keeps the share of the
    forecast. A checkpoint is told once it is written, which may be some steps later: it takes the run no way back."""
    kept = dict(earlier.values)
    if "loss" in event.values:
        kept = {name: kept[name] for name in LASTING if name in kept}
    values = {**kept, **event.values}
    if event.kind == "checkpoint":
        values["step"] = max(event.values.get("step") or 0, kept.get("step") or 0)
    return Event(kind=event.kind, rank=event.rank, values=values)


def last_checkpoint(record: RunRecord) -> tuple[int, str] | None:
    """Step and node of the last checkpoint that a rank told of as written and verified, as far as is on record."""
    told = None
    for said in record.lines():
        event = parse_event(said.text, said.rank)
        if event and event.kind == "checkpoint" and event.values.get("verified"):
            step = event.values.get("step")
            told = (step, said.node) if isinstance(step, int) else told
    return told
