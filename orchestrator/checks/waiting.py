"""Who waits for whom in a run that does not end, or ended in a timeout: as far as the ranks' last words tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from contract.events import (
    GenerationStarted,
    GroupJoined,
    NodesEvent,
    NodesStalled,
    RankStarted,
    WaitingForNodes,
    kind_of,
)
from contract.failures.classify import matches
from contract.log_lines import readable
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine

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


def last_heard(lines: Sequence[RunLine], plan: Plan | None, now: float) -> tuple[LastHeard, ...]:
    """Every rank of the plan (of the lines, where there is none), in order."""
    own: dict[int, list[RunLine]] = {}
    for said in lines:
        if said.rank is not None:
            own.setdefault(said.rank, []).append(said)
    places = {rank: told[-1].node for rank, told in own.items()}
    for part in plan.nodes if plan else ():
        places |= {part.first_rank + local: part.node for local in range(part.nproc_per_node)}
    return tuple(_heard(rank, node, own.get(rank, []), now) for rank, node in sorted(places.items()))


def _heard(rank: int, node: str, told: Sequence[RunLine], now: float) -> LastHeard:
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


def _word(said: RunLine) -> str:
    if said.event is None:
        return readable(said.text).strip()[:LAST_WORD]
    step = getattr(said.event, "step", None)
    return kind_of(said.event) + (f" {step}" if step is not None else "")


def who_waits(lines: Sequence[RunLine], heard: Sequence[LastHeard]) -> tuple[str, ...]:
    """Sentences, the surest first."""
    return (*_of_supervisors(lines), *_never_came(lines, heard), *_in_collectives(lines, heard))


def _of_supervisors(lines: Sequence[RunLine]) -> Iterator[str]:
    """Whom each node's supervisor misses, unless it has heard of them since, or the ranks have begun."""
    waiting: dict[str, WaitingForNodes] = {}
    silent: dict[tuple[str, str], NodesStalled] = {}
    for line in lines:
        event, node = line.event, line.node
        if not isinstance(event, NodesEvent | GenerationStarted):
            continue
        waiting.pop(node, None)
        if isinstance(event, WaitingForNodes):
            waiting[node] = event
        elif isinstance(event, NodesEvent):
            for name in event.nodes or ():
                silent.pop((node, name), None)
                if isinstance(event, NodesStalled):
                    silent[node, name] = event
    for node, event in waiting.items():
        yield f"{node} has waited {_seconds(event)} s for {', '.join(event.nodes or ()) or 'its peers'} to come"
    for (node, name), stalled in silent.items():
        yield f"{node} has heard nothing of {name} for {_seconds(stalled)} s"


def _seconds(event: NodesEvent) -> str:
    return "?" if event.seconds is None else f"{event.seconds}"


def _never_came(lines: Sequence[RunLine], heard: Sequence[LastHeard]) -> Iterator[str]:
    """Ranks of the trainer's own that did not join while others began; of a script, those that never spoke."""
    events = [said.event for said in lines if said.event]
    started = {event.rank for event in events if isinstance(event, RankStarted)}
    begun = [one.rank for one in heard if one.rank in started]
    for one in heard:
        if one.silent_s is None and len(heard) > 1:
            yield f"rank {one.rank} on {one.node} has not said a word: the others cannot begin without it"
        elif begun and one.rank not in begun:
            yield f"rank {one.rank} on {one.node} has not begun"
    joined = {event.rank for event in events if isinstance(event, GroupJoined)} & {one.rank for one in heard}
    if begun and not joined:
        yield f"none of ranks {', '.join(map(str, begun))} has joined the others yet"


def _in_collectives(lines: Sequence[RunLine], heard: Sequence[LastHeard]) -> Iterator[str]:
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
