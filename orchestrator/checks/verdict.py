"""The agents' verdict: why a generation of a run ended, and whether it was the last one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from contract.events import Event, Finished, Restarting
from contract.failures.owners import Owner
from orchestrator.specs.run_events import RunLine


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A `finished` or `restarting` event about a failure."""

    node: str
    rank: int | None
    exit_code: int | None
    kind: Owner | None
    reason: str
    cause: str = ""
    """The signature that they found."""
    frame: str = ""
    generation: int = 0
    """The generation that it ended; 0 where the attempt is over."""
    time: str = ""


def verdict_of(event: Event | None, time: str = "") -> Verdict | None:
    """The verdict of this event; None where it is another one, or tells of a good end."""
    if not isinstance(event, Finished | Restarting):
        return None
    kind = next((kind for kind in get_args(Owner) if kind == event.outcome), None)
    if kind is None:
        return None
    return Verdict(
        node=event.node or "?",
        rank=event.rank,
        exit_code=event.exit_code,
        kind=kind,
        reason=event.reason or "",
        cause=event.cause or "",
        frame=event.frame or "",
        generation=event.generation or 0 if isinstance(event, Restarting) else 0,
        time=time,
    )


def verdicts(lines: Iterable[RunLine]) -> tuple[Verdict, ...]:
    """Each once, though every node tells it, in order of time."""
    told: dict[int, Verdict] = {}
    for said in lines:
        verdict = verdict_of(said.event, said.time)
        if verdict:
            told.setdefault(verdict.generation, verdict)
    return tuple(sorted(told.values(), key=lambda verdict: (verdict.generation == 0, verdict.time)))
