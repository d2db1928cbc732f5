"""Figures of a live run: from the events of its program, from what it prints, and the state of its containers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from contract.events import OutputProgress, ProgressEvent
from orchestrator.checks.output_progress import (
    UNITS,
    newest_output,
    output_share,
    output_warning,
    output_words,
    remaining_s,
)
from orchestrator.checks.stragglers import share_of
from orchestrator.render.printable import printable
from orchestrator.specs.run import State


def reported(last: ProgressEvent, step: ProgressEvent | None) -> dict[str, Any]:
    """Fields of `LiveRun` that events of the program report: its newest one, and its newest step."""
    newest = step or last
    return {
        "step": last.step,
        "final_step": last.final_step,
        "loss": newest.loss if last.loss is None else last.loss,
        "per_s": newest.per_s,
        "unit": printable(newest.unit or "samples"),
        "of_forecast": last.of_forecast,
        "waiting": share_of(newest, "waiting"),
        "exchanging": share_of(newest, "exchanging"),
    }


class PrintedProgress:
    """Progress that was read from the output."""

    def __init__(self) -> None:
        self.event: OutputProgress | None = None
        self.at = 0.0
        """Time of the event by the clock that measures ages."""
        self._warning = ""

    def take(self, event: OutputProgress, at: float) -> str:
        """Take an event into account; a warning about it that the one before did not give, otherwise empty."""
        self.event = newest_output([event], self.event)
        if self.event is not event:
            return ""
        before, self._warning, self.at = self._warning, output_warning(event), at
        return self._warning[2:] if self._warning != before else ""

    def figures(self, now_s: float, *, running: bool) -> dict[str, Any]:
        """Fields of `LiveRun`."""
        event, age = self.event or OutputProgress(), max(0.0, now_s - self.at)
        known = event.unit in UNITS
        return {
            "output": output_words(event, running=running, age_s=age),
            "output_share": output_share(event),
            "remaining_s": remaining_s(event, age) if running else None,
            "loss": event.loss,
            "per_s": event.per_s if known else None,
            "unit": (event.unit or "") if known else "",
        }


def worst_state(states: Collection[str]) -> str:
    """The worst of these states of containers."""
    for worst in (State.FAILED, State.LOST, State.RUNNING, State.CREATED, State.QUEUED, State.STOPPED):
        if worst.value in states:
            return str(worst.value)
    return State.SUCCEEDED.value
