"""Ranks that hang and ranks that wait for them, by the last lines of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from contract.event_lines import kind_of
from contract.failures.classify import matches
from contract.log_lines import readable
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine

_CALL = re.compile(r'distributed_c10d\.py", line \d+, in (?P<call>(?!wrapper|_)\w+)|OpType=(?P<op>\w+)')
_COMPLETED = re.compile(r"last completed NCCL work: (?P<number>\d+)")
MAX_LAST_LINE = 400
"""Characters kept of it."""


@dataclass(frozen=True, kw_only=True)
class LastLine:
    """A rank, or a node of which no rank spoke."""

    rank: int
    node: str
    silent_s: float | None
    """Seconds until the end, or until now; None where it never wrote."""
    word: str
    timed_out_in: str = ""
    """The collective in which it gave up waiting; empty where it did not."""


def timestamp(time: str) -> float:
    """Seconds since 1970 of a line's time, which has up to nine digits of a second; 0 for what is no time."""
    parts = re.fullmatch(r"(?P<whole>[^.Z+]+?)(?P<part>\.[0-9]{1,18})?(?P<zone>Z|[+-]\d\d:\d\d)?", time)
    if not parts:
        return 0.0
    zone = (parts["zone"] or "Z").replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(parts["whole"] + zone).timestamp() + float(parts["part"] or 0)
    except (ValueError, OverflowError):
        return 0.0


def last_lines(lines: Sequence[RunLine], plan: Plan | None, now: float) -> tuple[LastLine, ...]:
    """Every rank of the plan (of the lines, where there is none), in order."""
    own: dict[int, list[RunLine]] = {}
    for line in lines:
        if line.rank is not None:
            own.setdefault(line.rank, []).append(line)
    places = {rank: printed[-1].node for rank, printed in own.items()}
    for part in plan.nodes if plan else ():
        places |= {part.first_rank + local: part.node for local in range(part.nproc_per_node)}
    return tuple(_last_line(rank, node, own.get(rank, []), now) for rank, node in sorted(places.items()))


def _last_line(rank: int, node: str, printed: Sequence[RunLine], now: float) -> LastLine:
    if not printed:
        return LastLine(rank=rank, node=node, silent_s=None, word="")
    timed_out = any(matches(line.text, "network.timeout", "nccl.timeout") for line in printed)
    calls = [found["call"] or found["op"] for line in printed if (found := _CALL.search(readable(line.text)))]
    return LastLine(
        rank=rank,
        node=node,
        silent_s=max(0.0, now - timestamp(printed[-1].time)),
        word=_word(next((line for line in reversed(printed) if line.text.strip()), printed[-1])),
        timed_out_in=(calls[-1].lower() if calls else "a collective") if timed_out else "",
    )


def _word(line: RunLine) -> str:
    if line.event is None:
        return readable(line.text).strip()[:MAX_LAST_LINE]
    step = getattr(line.event, "step", None)
    return kind_of(line.event) + (f" {step}" if step is not None else "")


def collective_waits(lines: Sequence[RunLine], last: Sequence[LastLine]) -> Iterator[str]:
    """Sentences about ranks that gave up waiting in a collective."""
    gave_up = [one for one in last if one.timed_out_in]
    for one in gave_up:
        yield f"rank {one.rank} on {one.node} gave up waiting in {one.timed_out_in}"
    completed = {
        line.rank: int(found["number"])
        for line in lines
        if line.rank is not None and (found := _COMPLETED.search(readable(line.text)))
    }
    if gave_up and len(set(completed.values())) > 1:
        behind = min(completed, key=lambda rank: completed[rank])
        yield f"rank {behind} is behind: the last collective that it completed is number {completed[behind]}"
    others = [one for one in last if not one.timed_out_in]
    if gave_up and others:
        names = ", ".join(f"rank {one.rank} on {one.node}" for one in others)
        yield f"they waited for {names}: no timeout was reported there"
