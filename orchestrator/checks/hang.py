"""Ranks that hang and ranks that wait for them: as the coordinator decided, and by the last lines of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from contract.event_lines import kind_of
from contract.event_values import RankPosition
from contract.events import (
    GenerationStarted,
    GroupJoined,
    LivenessReported,
    NodesEvent,
    NodesStalled,
    RankStarted,
    ResourcesSampled,
    StacksTaken,
    WaitingForNodes,
)
from contract.failures.classify import matches
from contract.failures.tracebacks import LIBRARY
from contract.liveness_watch import EXCHANGE_RULES
from contract.log_lines import readable
from contract.rank_words import position_line
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine

_HELD_UP = ("computing", "reading", "native", "idle", "sleeping", "stopped", "blocked")
"""Rules about ranks that others wait for."""


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """The newest position of a rank that its agent reported."""

    rank: int
    node: str
    line: str = ""
    """The user's line: `FILE:LINE in FUNCTION`; empty: not known."""
    step: int | None = None
    cpu: float | None = None
    """CPU seconds per second."""
    frames: tuple[str, ...] = ()
    """Its Python stack, `FILE:LINE in FUNCTION`, the innermost first; none: not requested, or no answer."""

    @property
    def at(self) -> str:
        """The innermost frame outside of libraries, otherwise its line."""
        return next((frame for frame in self.frames if not LIBRARY.search(frame)), self.line)

    @property
    def text(self) -> str:
        return position_line(self.rank, self.node, line=self.line or self.at, step=self.step, cpu=self.cpu)


def rank_places(lines: Iterable[RunLine], until: str = "") -> tuple[RankPlace, ...]:
    """The newest position of each rank. `until`: time of a line; later lines are about the end of the run."""
    found: dict[int, RankPlace] = {}
    for line in lines:
        event = line.event if not until or line.time <= until else None
        if isinstance(event, GenerationStarted):
            found = {rank: place for rank, place in found.items() if place.node != line.node}
        elif isinstance(event, StacksTaken | ResourcesSampled):
            taken = event.ranks if isinstance(event, StacksTaken) else event.positions
            found |= {one.rank or 0: _place(line.node, one, found.get(one.rank or 0)) for one in taken or ()}
    return tuple(found[rank] for rank in sorted(found))


def liveness_reports(lines: Iterable[RunLine], until: str = "") -> tuple[LivenessReported, ...]:
    """Decisions of the coordinator, the newest on progress before those on the exchange of gradients; none that was
    taken back, or is of an earlier generation."""
    found: dict[str, LivenessReported] = {}
    for line in lines:
        event = line.event if not until or line.time <= until else None
        if line.node_rank:  # rank 0's agent reports for all
            continue
        if isinstance(event, GenerationStarted):
            found = {}
        elif isinstance(event, LivenessReported):
            of_exchange = event.rule in EXCHANGE_RULES
            found[(event.rule or "") if of_exchange else ""] = event
    return tuple(found[name] for name in sorted(found) if found[name].rule)


def rank_waited_for(reports: Sequence[LivenessReported], places: Sequence[RankPlace]) -> tuple[RankPlace, str] | None:
    """The rank that the others waited for, and a line with its place and the time; None where no report says so."""
    for report in reports:
        if report.rule in _HELD_UP and len(report.ranks or ()) == 1:
            rank = (report.ranks or (0,))[0]
            node = next(iter(report.nodes or ()), "?")
            place = next((one for one in places if one.rank == rank), RankPlace(rank=rank, node=node))
            text, _, waits = (report.text or "").partition("; ")
            where = f"at {place.at}" if place.at else text
            return place, f"stuck for {report.seconds or 0:.0f} s, {where}; {waits or text}"
    return None


def _place(node: str, one: RankPosition, before: RankPlace | None) -> RankPlace:
    frames = one.frames if one.frames is not None else before.frames if before and before.line == one.line else ()
    return RankPlace(
        rank=one.rank or 0, node=node, line=one.line or "", step=one.step, cpu=one.cpu, frames=frames or ()
    )


_CALL = re.compile(r'distributed_c10d\.py", line \d+, in (?P<call>(?!wrapper|_)\w+)|OpType=(?P<op>\w+)')
_COMPLETED = re.compile(r"last completed NCCL work: (?P<number>\d+)")
MAX_LAST_LINE = 400
"""Characters kept of it."""


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
    calls = [found["call"] or found["op"] for said in told if (found := _CALL.search(readable(said.text)))]
    return LastHeard(
        rank=rank,
        node=node,
        silent_s=max(0.0, now - timestamp(told[-1].time)),
        word=_word(next((said for said in reversed(told) if said.text.strip()), told[-1])),
        timed_out_in=(calls[-1].lower() if calls else "a collective") if timed_out else "",
    )


def _word(said: RunLine) -> str:
    if said.event is None:
        return readable(said.text).strip()[:MAX_LAST_LINE]
    step = getattr(said.event, "step", None)
    return kind_of(said.event) + (f" {step}" if step is not None else "")


def describe_waits(lines: Sequence[RunLine], heard: Sequence[LastHeard]) -> tuple[str, ...]:
    """Sentences, the most certain first."""
    return (*_of_supervisors(lines), *_not_begun(lines, heard), *_in_collectives(lines, heard))


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


def _not_begun(lines: Sequence[RunLine], heard: Sequence[LastHeard]) -> Iterator[str]:
    """Ranks of the trainer's own that did not join while others began: each of them reports its start."""
    events = [said.event for said in lines if said.event]
    started = {event.rank for event in events if isinstance(event, RankStarted)}
    begun = [one.rank for one in heard if one.rank in started]
    for one in heard:
        if begun and one.rank not in begun:
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
        yield f"they waited for {names}: no timeout was reported there"
