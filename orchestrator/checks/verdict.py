"""What the supervisors in the containers agreed on: why an epoch of a run ended, and whether it was the last one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from contract.failures.owners import Owner
from orchestrator.specs.event import Event, parse_event
from orchestrator.specs.run_events import Said


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An `over` or `again` event that tells of a failure."""

    node: str
    rank: int | None
    exit_code: int | None
    kind: Owner | None
    reason: str
    cause: str = ""
    """The signature that they found."""
    frame: str = ""
    epoch: int = 0
    """The one that begins after it; 0 where it is over."""
    time: str = ""


def verdict_of(event: Event | None, time: str = "") -> Verdict | None:
    """The verdict of this event; None where it is another one, or tells of a good end."""
    if event is None or event.kind not in ("again", "over"):
        return None
    values = event.values
    kind = next((kind for kind in get_args(Owner) if kind == values.get("class")), None)
    if kind is None:
        return None
    return Verdict(
        node=str(values.get("node") or "?"),
        rank=_whole(values.get("rank")),
        exit_code=_whole(values.get("exit_code")),
        kind=kind,
        reason=str(values.get("reason") or ""),
        cause=str(values.get("cause") or ""),
        frame=str(values.get("frame") or ""),
        epoch=_whole(values.get("epoch")) or 0 if event.kind == "again" else 0,
        time=time,
    )


def verdicts(lines: Iterable[Said]) -> tuple[Verdict, ...]:
    """Each once, though every node tells it, in order of time."""
    told: dict[int, Verdict] = {}
    for said in lines:
        verdict = verdict_of(parse_event(said.text, said.rank), said.time)
        if verdict:
            told.setdefault(verdict.epoch, verdict)
    return tuple(sorted(told.values(), key=lambda verdict: (verdict.epoch == 0, verdict.time)))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
