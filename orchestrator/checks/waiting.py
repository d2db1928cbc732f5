"""Who waits for whom in a run that does not end, or ended in a timeout: as far as the ranks' last words tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contract.failures.classify import matches
from contract.log_lines import readable
from orchestrator.specs.event import Event, parse_event
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import Said

_COLLECTIVE = re.compile(r'distributed_c10d\.py", line \d+, in (?P<call>(?!wrapper|_)\w+)|OpType=(?P<op>\w+)')
_COMPLETED = re.compile(r"last completed NCCL work: (?P<number>\d+)")
LAST_WORD = 400
"""Letters of it."""


@dataclass(frozen=True, kw_only=True)
class LastHeard:
    """A rank, or a node of which no rank spoke."""

    rank: int
    node: str
    silent_s: float | None
    """Until the end, or until now; None where it never spoke."""
    word: str
    timed_out_in: str = ""
    """The collective in which it gave up waiting; empty where it did not."""


def moment(time: str) -> float:
    """Seconds since 1970 of a line's time, which has up to nine digits of a second; 0 for what is no time."""
    parts = re.fullmatch(r"(?P<whole>[^.Z+]+?)(?P<part>\.[0-9]{1,18})?(?P<zone>Z|[+-]\d\d:\d\d)?", time)
    if not parts:
        return 0.0
    zone = (parts["zone"] or "Z").replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(parts["whole"] + zone).timestamp() + float(parts["part"] or 0)
    except (ValueError, OverflowError):
        return 0.0


def last_heard(lines: Sequence[Said], plan: Plan | None, now: float) -> tuple[LastHeard, ...]:
    """Every rank of the plan (of the lines, where there is none), in order."""
    own: dict[int, list[Said]] = {}
    for said in lines:
        if said.rank is not None:
            own.setdefault(said.rank, []).append(said)
    places = {rank: told[-1].node for rank, told in own.items()}
    for part in plan.nodes if plan else ():
        places |= {part.first_rank + local: part.node for local in range(part.nproc_per_node)}
    return tuple(_heard(rank, node, own.get(rank, []), now) for rank, node in sorted(places.items()))


def _heard(rank: int, node: str, told: Sequence[Said], now: float) -> LastHeard:
    if not told:
        return LastHeard(rank=rank, node=node, silent_s=None, word="")
    timed_out = any(matches(said.text, "network.timeout", "nccl.timeout") for said in told)
    calls = [found["call"] or found["op"] for said in told if (found := _COLLECTIVE.search(readable(said.text)))]
    return LastHeard(
        rank=rank,
        node=node,
        silent_s=max(0.0, now - moment(told[-1].time)),
        word=_word(next((said for said in reversed(told) if said.text.strip()), told[-1])),
        timed_out_in=(calls[-1].lower() if calls else "a collective") if timed_out else "",
    )


def _word(said: Said) -> str:
    event = parse_event(said.text, said.rank)
    if event is None:
        return readable(said.text).strip()[:LAST_WORD]
    step = event.values.get("step")
    return event.kind + (f" {step}" if step is not None else "")


def who_waits(lines: Sequence[Said], heard: Sequence[LastHeard]) -> tuple[str, ...]:
    """Sentences, the surest first."""
    return (*_of_supervisors(lines), *_never_came(lines, heard), *_in_collectives(lines, heard))


def _of_supervisors(lines: Sequence[Said]) -> Iterator[str]:
    """Whom each node's supervisor misses, unless it has heard of them since, or the ranks have begun."""
    waiting: dict[str, Event] = {}
    silent: dict[tuple[str, str], Any] = {}
    for said in lines:
        event = parse_event(said.text, said.rank)
        if event is None or event.kind not in ("waiting", "stalled", "heard", "epoch"):
            continue
        waiting.pop(said.node, None)
        for name in map(str, event.values.get("nodes") or ()):
            silent.pop((said.node, name), None)
            if event.kind == "stalled":
                silent[said.node, name] = event.values.get("seconds", "?")
        if event.kind == "waiting":
            waiting[said.node] = event
    for node, event in waiting.items():
        names = ", ".join(map(str, event.values.get("for") or ()))
        yield f"{node} has waited {event.values.get('seconds', '?')} s for {names or 'its peers'} to come"
    for (node, name), seconds in silent.items():
        yield f"{node} has heard nothing of {name} for {seconds} s"


def _never_came(lines: Sequence[Said], heard: Sequence[LastHeard]) -> Iterator[str]:
    """Ranks of the trainer's own that did not join while others began; of a script, those that never spoke."""
    kinds: dict[int, set[str]] = {one.rank: set() for one in heard}
    for said in lines:
        event = parse_event(said.text, said.rank)
        if event and event.rank is not None and event.rank in kinds:
            kinds[event.rank].add(event.kind)
    begun = [rank for rank, told in kinds.items() if "started" in told]
    for one in heard:
        if one.silent_s is None and len(heard) > 1:
            yield f"rank {one.rank} on {one.node} has not said a word: the others cannot begin without it"
        elif begun and one.rank not in begun:
            yield f"rank {one.rank} on {one.node} has not begun"
    joined = [rank for rank, told in kinds.items() if "joined" in told]
    if begun and not joined:
        yield f"none of ranks {', '.join(map(str, begun))} has joined the others yet"


def _in_collectives(lines: Sequence[Said], heard: Sequence[LastHeard]) -> Iterator[str]:
    gave_up = [one for one in heard if one.timed_out_in]
    for one in gave_up:
        yield f"rank {one.rank} on {one.node} gave up waiting in {one.timed_out_in}"
    completed = {
        said.rank: int(found["number"])
        for said in lines
        if said.rank is not None and (found := _COMPLETED.search(readable(said.text)))
    }
    if gave_up and len(set(completed.values())) > 1:
        behind = min(completed, key=lambda rank: completed[rank])
        yield f"rank {behind} is behind: the last collective that it completed is number {completed[behind]}"
    others = [one for one in heard if not one.timed_out_in]
    if gave_up and others:
        names = ", ".join(f"rank {one.rank} on {one.node}" for one in others)
        yield f"they waited for {names}: no timeout was told from there"
