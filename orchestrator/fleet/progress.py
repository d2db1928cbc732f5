"""How far a run is: the newest event that rank 0 wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.fleet.launch import Seated
from orchestrator.specs.errors import OrchError
from orchestrator.specs.event import Event, parse_event, split_rank

PROGRESS = ("step", "evaluation", "checkpoint", "stopped", "done")
LOOK_BACK = 200
"""Lines of rank 0 that are searched: it writes an event every few lines."""


def last_event(seated: Sequence[Seated]) -> Event | None:
    """The last of rank 0's events that tells of progress; None where it has made none, or cannot be asked."""
    newest = None
    for seat in seated:
        if seat.node_rank == 0:
            for event in _events(seat):
                if event.kind in PROGRESS:
                    newest = event if "loss" in event.values or newest is None else _with_loss(event, newest)
    return newest


def _events(seat: Seated) -> Iterator[Event]:
    try:
        for line in seat.node.engine.logs(seat.container, tail=LOOK_BACK):
            rank, text = split_rank(line.text)
            if event := parse_event(text, rank):
                yield event
    except OrchError:
        return  # how the run is, is known without


def _with_loss(event: Event, earlier: Event) -> Event:
    """An event that tells no loss (a checkpoint) keeps that of the step before."""
    return Event(kind=event.kind, rank=event.rank, values={**earlier.values, **event.values})
