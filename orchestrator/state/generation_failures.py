"""Failures that agents report at the end of a generation, each once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from contract.events import Event, Finished, Restarting
from contract.failures.owners import Owner
from orchestrator.checks.failure import GenerationFailure
from orchestrator.specs.run_events import RunLine


def generation_failure(event: Event | None, time: str = "") -> GenerationFailure | None:
    """The failure that this event reports; None for another event, and for a good end."""
    if not isinstance(event, Finished | Restarting):
        return None
    owner = next((owner for owner in get_args(Owner) if owner == event.outcome), None)
    if owner is None:
        return None
    return GenerationFailure(
        node=event.node or "?",
        rank=event.rank,
        exit_code=event.exit_code,
        owner=owner,
        reason=event.reason or "",
        cause=event.cause or "",
        frame=event.frame or "",
        generation=event.generation or 0 if isinstance(event, Restarting) else 0,
        time=time,
    )


def generation_failures(lines: Iterable[RunLine]) -> tuple[GenerationFailure, ...]:
    """All failures, in order of time; each once, though every node reports it."""
    found: dict[int, GenerationFailure] = {}
    for line in lines:
        if failure := generation_failure(line.event, line.time):
            found.setdefault(failure.generation, failure)
    return tuple(sorted(found.values(), key=lambda failure: (failure.generation == 0, failure.time)))
