"""Which rank stands still, and which wait for it: by the stacks that the supervisors asked their ranks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contract.events import GenerationStarted, Hung, Progressing, StuckRank
from contract.failures.tracebacks import LIBRARY
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine

BACKWARD = "the backward pass, which sums gradients"
_RESTING = "left-out"
_COLLECTIVE = re.compile(r"/torch/distributed/\S+ in (?P<call>\w+)$")
_WRAPPED = re.compile(r"^(?:wrapper|_\w+|<\w+>)$")
_IN_BACKWARD = re.compile(r" in _engine_run_backward$")
_STATES = {"T": "it is stopped", "D": "the kernel holds it: a disk, a network share or a driver"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank stands."""

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
    """Of the step, as the trainer names it."""
    exchange: str = ""
    """The collective that it says it is in."""

    @property
    def at(self) -> str:
        """The innermost place outside of libraries, else the innermost of all."""
        return next((frame for frame in self.frames if not LIBRARY.search(frame)), next(iter(self.frames), ""))

    @property
    def waits_in(self) -> str:
        """What it waits for the other ranks in; empty where it does not, or does not answer."""
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
    def words(self) -> str:
        """Where, in words."""
        about = ", ".join([*([f"step {self.step}"] if self.step else []), *([self.part] if self.part else [])])
        where = f"at {self.at}" if self.frames else f"and does not answer ({_STATES.get(self.state, 'in time')})"
        return where + (f" ({about})" if about else "")


def places(lines: Iterable[RunLine], until: str = "") -> tuple[Place, ...]:
    """The newest of each node that has not moved since, by rank. `until`: a line's time; what came later is about an
    end, not about what led to it."""
    newest: dict[str, Hung] = {}
    for line in lines:
        event = line.event if not until or line.time <= until else None
        if isinstance(event, Progressing | GenerationStarted):
            newest.pop(line.node, None)
        elif isinstance(event, Hung):
            newest[line.node] = event
    found = (_place(node, event.seconds or 0.0, one) for node, event in newest.items() for one in event.ranks or ())
    return tuple(sorted(found, key=lambda place: place.rank))


def culprit(found: Sequence[Place]) -> tuple[Place, str] | None:
    """The one that the others wait for, and a line that says where it stood, how long, and what they waited in; None
    where the places do not tell."""
    stuck, waiting = _sides(found)
    if len(stuck) != 1 or not waiting:
        return None
    one = stuck[0]
    return (
        one,
        f"stuck for {one.seconds:.0f} s, {one.words}; {'; '.join(_waiting(waiting, 'waited for it', 'waited for it'))}",
    )


def sentences(found: Sequence[Place], plan: Plan | None) -> Iterator[str]:
    """For people: who stands still and who waits, the surest first."""
    stuck, waiting = _sides(found)
    for one in stuck:
        yield f"rank {one.rank} on {one.node} stands still {one.words}, for {one.seconds:.0f} s"
    told = {place.rank for place in found}
    others = [rank for part in (plan.nodes if plan else ()) for rank in _ranks_of(part) if rank not in told]
    for_whom = {0: "", 1: " for it"}.get(len(stuck), " for them")
    yield from _waiting(waiting, "waits" + for_whom, "wait" + for_whom)
    if waiting and others and not stuck:
        yield f"{ranks(others)} {'is' if len(others) == 1 else 'are'} not known to stand still: perhaps at long work"
    if len({place.waits_in for place in waiting}) > 1 and not stuck:
        yield "they are in different collectives: some have left out one, or taken another way"
    elif len(waiting) == len(found) > 1 and not others:
        yield "all wait for one another in the same place: the network between them, orch test"


def ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 4`."""
    ordered = sorted(numbers)
    starts = [number for number in ordered if number - 1 not in ordered]
    ends = [number for number in ordered if number + 1 not in ordered]
    parts = [f"{start}" if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"


def _sides(found: Sequence[Place]) -> tuple[list[Place], list[Place]]:
    """Those who hold the run up, and those who wait. Without one who waits, all may just be at long work."""
    part = [place for place in found if place.exchange != _RESTING]
    waiting = [place for place in part if place.waits_in]
    stuck = [place for place in part if not place.waits_in and (waiting or not place.frames)]
    return stuck, waiting


def _waiting(waiting: Sequence[Place], of_one: str, of_many: str) -> Iterator[str]:
    """A sentence for each collective and step."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for place in waiting:
        groups.setdefault((place.waits_in, place.step), []).append(place.rank)
    for (collective, step), numbers in groups.items():
        verb = of_many if len(numbers) > 1 else of_one
        yield f"{ranks(numbers)} {verb} in {collective}" + (f" (step {step})" if step else "")


def _ranks_of(part: Any) -> range:
    return range(part.first_rank, part.first_rank + part.nproc_per_node)


def _place(node: str, seconds: float, stuck: StuckRank) -> Place:
    return Place(
        rank=stuck.rank or 0,
        node=node,
        seconds=float(seconds),
        frames=stuck.frames or (),
        state=stuck.state or "",
        step=stuck.step,
        part=stuck.part or "",
        exchange=stuck.exchange or "",
    )
