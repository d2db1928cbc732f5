"""Ranks that hang and ranks that wait for them: by the stacks that the agents took, otherwise by their last lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contract.events import (
    GenerationStarted,
    GroupJoined,
    Hung,
    NodesEvent,
    NodesStalled,
    Progressing,
    RankStarted,
    StuckRank,
    WaitingForNodes,
    kind_of,
)
from contract.failures.classify import matches
from contract.failures.tracebacks import LIBRARY
from contract.log_lines import readable
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine

BACKWARD = "the backward pass, which sums gradients"
_RESTING = "left-out"
_COLLECTIVE = re.compile(r"/torch/distributed/\S+ in (?P<call>\w+)$")
_WRAPPED = re.compile(r"^(?:wrapper|_\w+|<\w+>)$")
_IN_BACKWARD = re.compile(r" in _engine_run_backward$")
_STATES = {"T": "it is stopped", "D": "the kernel holds it: a disk, a network share or a driver"}


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """Python stack of a rank that makes no progress."""

    rank: int
    node: str
    seconds: float
    """Without progress of any rank there, when it was asked."""
    frames: tuple[str, ...]
    """`FILE:LINE in FUNCTION`, the innermost first; none: it did not answer."""
    state: str
    """The kernel's letter for the process."""
    step: int | None = None
    part: str = ""
    """Part of the step, as the trainer names it."""
    exchange: str = ""
    """The collective that it says it is in."""

    @property
    def at(self) -> str:
        """The innermost frame outside of libraries, otherwise the innermost of all."""
        return next((frame for frame in self.frames if not LIBRARY.search(frame)), next(iter(self.frames), ""))

    @property
    def waits_in(self) -> str:
        """Call in which it waits for the other ranks; empty where it does not wait, or does not answer."""
        if not self.frames:
            return ""
        if self.exchange:
            return self.exchange
        for frame in self.frames:
            if (found := _COLLECTIVE.search(frame)) and not _WRAPPED.match(found["call"]):
                return found["call"]
            if not LIBRARY.search(frame):
                break
        in_backward = self.part == "backward" or _IN_BACKWARD.search(self.frames[0])
        return BACKWARD if in_backward else ""

    @property
    def description(self) -> str:
        """`at FILE:LINE in FUNCTION (step 3, data)`, or that it does not answer."""
        about = ", ".join([*([f"step {self.step}"] if self.step else []), *([self.part] if self.part else [])])
        where = f"at {self.at}" if self.frames else f"and does not answer ({_STATES.get(self.state, 'in time')})"
        return where + (f" ({about})" if about else "")


def rank_stacks(lines: Iterable[RunLine], until: str = "") -> tuple[RankStack, ...]:
    """Newest stacks of the nodes without progress since, by rank.

    `until`: time of a line; later lines are about the end of the run, not about what led to it.
    """
    newest: dict[str, Hung] = {}
    for line in lines:
        event = line.event if not until or line.time <= until else None
        if isinstance(event, Progressing | GenerationStarted):
            newest.pop(line.node, None)
        elif isinstance(event, Hung):
            newest[line.node] = event
    found = (
        _rank_stack(node, event.seconds or 0.0, one) for node, event in newest.items() for one in event.ranks or ()
    )
    return tuple(sorted(found, key=lambda place: place.rank))


def rank_waited_for(found: Sequence[RankStack]) -> tuple[RankStack, str] | None:
    """The rank that the others wait for, and a line with its place, the time and their collective.

    None where the stacks do not show it.
    """
    stuck, waiting = _stuck_and_waiting(found)
    if len(stuck) != 1 or not waiting:
        return None
    one = stuck[0]
    waits = "; ".join(_waiting(waiting, "waited for it", "waited for it"))
    return one, f"stuck for {one.seconds:.0f} s, {one.description}; {waits}"


def describe_hang(found: Sequence[RankStack], plan: Plan | None, job: ClusterJob | None = None) -> Iterator[str]:
    """Sentences about the ranks that are stuck and those that wait, the most certain first. `job`: where the run is a
    job of a cluster."""
    stuck, waiting = _stuck_and_waiting(found)
    for one in stuck:
        yield f"rank {one.rank} on {one.node} is stuck {one.description}, for {one.seconds:.0f} s"
    told = {place.rank for place in found}
    others = [rank for part in (plan.nodes if plan else ()) for rank in _ranks_of(part) if rank not in told]
    for_whom = {0: "", 1: " for it"}.get(len(stuck), " for them")
    yield from _waiting(waiting, "waits" + for_whom, "wait" + for_whom)
    if waiting and others and not stuck:
        yield f"{ranks(others)} {'is' if len(others) == 1 else 'are'} not known to be stuck: perhaps computing"
    if len({place.waits_in for place in waiting}) > 1 and not stuck:
        yield "they are in different collectives: some ranks skipped one, or took another branch"
    elif len(waiting) == len(found) > 1 and not others:
        test = job.test if job else "orch test"
        yield f"all wait for one another in the same place: the network between them, {test}"


def ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 4`."""
    ordered = sorted(numbers)
    starts = [number for number in ordered if number - 1 not in ordered]
    ends = [number for number in ordered if number + 1 not in ordered]
    parts = [f"{start}" if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"


def _stuck_and_waiting(found: Sequence[RankStack]) -> tuple[list[RankStack], list[RankStack]]:
    """Ranks that block the run, and ranks that wait. Where none waits, all may just compute for long."""
    part = [place for place in found if place.exchange != _RESTING]
    waiting = [place for place in part if place.waits_in]
    stuck = [place for place in part if not place.waits_in and (waiting or not place.frames)]
    return stuck, waiting


def _waiting(waiting: Sequence[RankStack], of_one: str, of_many: str) -> Iterator[str]:
    """A sentence for each collective and step."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for place in waiting:
        groups.setdefault((place.waits_in, place.step), []).append(place.rank)
    for (collective, step), numbers in groups.items():
        verb = of_many if len(numbers) > 1 else of_one
        yield f"{ranks(numbers)} {verb} in {collective}" + (f" (step {step})" if step else "")


def _ranks_of(part: Any) -> range:
    return range(part.first_rank, part.first_rank + part.nproc_per_node)


def _rank_stack(node: str, seconds: float, stuck: StuckRank) -> RankStack:
    return RankStack(
        rank=stuck.rank or 0,
        node=node,
        seconds=float(seconds),
        frames=stuck.frames or (),
        state=stuck.state or "",
        step=stuck.step,
        part=stuck.part or "",
        exchange=stuck.exchange or "",
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
        yield f"they waited for {names}: no timeout was reported there"
