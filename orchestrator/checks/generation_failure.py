"""Failure that ended a generation of a run, as the agents agreed on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from contract.events import Event, Finished, Restarting
from contract.failures.owners import Owner
from orchestrator.specs.run_events import RunLine


@dataclass(frozen=True, kw_only=True)
class GenerationFailure:
    """A `finished` or `restarting` event about a failure."""

    node: str
    rank: int | None
    exit_code: int | None
    owner: Owner
    reason: str
    cause: str = ""
    """The signature that they found."""
    frame: str = ""
    generation: int = 0
    """The generation that it ended; 0 where the attempt is over."""
    time: str = ""


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
    told: dict[int, GenerationFailure] = {}
    for said in lines:
        failure = generation_failure(said.event, said.time)
        if failure:
            told.setdefault(failure.generation, failure)
    return tuple(sorted(told.values(), key=lambda failure: (failure.generation == 0, failure.time)))
