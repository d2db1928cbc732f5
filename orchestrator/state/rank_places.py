"""Position of each rank, and ranks that wait for others, as agents and coordinator have reported them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from contract.event_values import RankPosition
from contract.events import LivenessReported
from contract.failures.tracebacks import LIBRARY
from contract.rank_words import position_line, together_line
from orchestrator.checks.hang import LastLine
from orchestrator.state.run_state import AttemptPart, RunState

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
    collectives_per_step: float | None = None
    """Collectives that it completed for each optimizer step of the last minute."""
    frames: tuple[str, ...] = ()
    """Its Python stack, `FILE:LINE in FUNCTION`, the innermost first; none: not requested, or no answer."""
    age_s: float | None = None
    """Seconds since it was there: agents report every ten seconds; None: not known, or the run has ended."""

    @property
    def at(self) -> str:
        """The innermost frame outside of libraries, otherwise its line."""
        return next((frame for frame in self.frames if not LIBRARY.search(frame)), self.line)

    @property
    def text(self) -> str:
        return position_line(self.rank, self.node, line=self.line or self.at, step=self.step, cpu=self.cpu)


def together(places: Sequence[RankPlace]) -> str:
    """`together: 1.0 collectives per step`, of most ranks; empty: no rank has counted them."""
    counted = [one.collectives_per_step for one in places if one.collectives_per_step is not None]
    return together_line(median(counted)) if counted else ""


def rank_places(state: RunState, now: float | None = None) -> tuple[RankPlace, ...]:
    """The newest position of each rank in its generation. `now`: with its age."""

    def age(part: AttemptPart, at: float | None) -> float | None:
        return None if now is None or at is None else max(0.0, now - part.by_our_clock(at))

    found = {
        rank: _place(node.name, rank, known.position, age(node.part, known.position_at))
        for node in state.nodes.values()
        for rank, known in node.part.ranks.items()
        if known.position
    }
    return tuple(found[rank] for rank in sorted(found))


def liveness_reports(state: RunState) -> tuple[LivenessReported, ...]:
    """Decisions of the coordinator that stand: that on progress, and that on the exchange of gradients."""
    part = state.coordinator.part if state.coordinator else None
    return tuple(one for one in (part.liveness, part.exchange) if one) if part else ()


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


def waits_of(state: RunState, last: Sequence[LastLine], now: float) -> Iterator[str]:
    """Sentences about nodes and ranks that did not come."""
    for node in state.nodes.values():
        if waiting := node.part.waiting_for:
            yield f"{node.name} has waited {now - min(waiting.values()):.0f} s for {', '.join(waiting)} to come"
    for node in state.nodes.values():
        for name, since in node.part.peers_silent.items():
            yield f"{node.name} has heard nothing of {name} for {now - since:.0f} s"
    yield from _not_begun(state, last)


def _not_begun(state: RunState, last: Sequence[LastLine]) -> Iterator[str]:
    """Ranks of the trainer's own that did not join while others began: each of them reports its start."""
    ranks = {number: rank for node in state.nodes.values() for number, rank in node.part.ranks.items()}
    begun = [one.rank for one in last if one.rank in ranks and ranks[one.rank].started]
    for one in last:
        if begun and one.rank not in begun:
            yield f"rank {one.rank} on {one.node} has not begun"
    if begun and not any(one.rank in ranks and ranks[one.rank].stage == "joined" for one in last):
        yield f"none of ranks {', '.join(map(str, begun))} has joined the others yet"


def _place(node: str, rank: int, one: RankPosition, age_s: float | None) -> RankPlace:
    return RankPlace(
        rank=rank, node=node, line=one.line or "", step=one.step, cpu=one.cpu,
        collectives_per_step=one.collectives_per_step, frames=one.frames or (), age_s=age_s,
    )  # fmt: skip
