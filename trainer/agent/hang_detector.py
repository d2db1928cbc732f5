"""Detection of ranks that make no progress. Pure: the clock comes in."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from contract.events import StuckRank
from trainer.agent.heartbeat import RESTING, Heartbeat
from trainer.agent.stacks import Stack

STATES = {"T": " (it is stopped)", "D": " (the kernel holds it: a disk, a network share or a driver)"}


@dataclass(frozen=True, kw_only=True)
class HangState:
    hung: bool
    seconds: float
    """Time without progress."""


class HangDetector:
    """Compares marks of progress; reports a hang after `after_s`, and again after twice as long each time."""

    def __init__(self, after_s: float, now: float) -> None:
        self._after_s, self._next_s = after_s, after_s
        self._mark: Hashable = None
        self._since = now

    def since_progress(self, now: float) -> float:
        """Seconds since the mark changed last."""
        return now - self._since

    def look(self, mark: Hashable, now: float) -> HangState | None:
        """Return the state if it has changed: hung, or progressing again."""
        still_s = now - self._since
        if mark != self._mark:
            reported = self._next_s > self._after_s
            self._mark, self._since, self._next_s = mark, now, self._after_s
            return HangState(hung=False, seconds=still_s) if reported else None
        if still_s < self._next_s:
            return None
        while self._next_s <= still_s:
            self._next_s *= 2
        return HangState(hung=True, seconds=still_s)


def mark_of(beats: Sequence[Heartbeat], lines: int) -> Hashable:
    """A mark that changes with progress: the work that ranks report; for scripts without heartbeats, the number of
    lines that they wrote. A rank that takes no part makes progress as long as it lives."""
    return tuple((beat.local_rank, beat.at_s if beat.exchange == RESTING else beat.done) for beat in beats) or lines


def stuck_ranks(stacks: Iterable[Stack], beats: Iterable[Heartbeat], first_rank: int) -> tuple[StuckRank, ...]:
    """Combine stack and heartbeat of each rank to its position."""
    work: dict[int, dict[str, Any]] = {
        beat.local_rank: {"step": beat.step, "part": beat.part, "exchange": beat.exchange} for beat in beats
    }
    return tuple(
        StuckRank(
            rank=first_rank + stack.local_rank,
            process=stack.process,
            **work.get(stack.local_rank, {}),
            frames=stack.frames,
            state=stack.state,
        )
        for stack in stacks
    )


def frozen(local_rank: int, silent_s: float, position: StuckRank | None) -> str:
    """The reason why a rank was killed, with its position."""
    why = f"frozen: local rank {local_rank} sent no heartbeat for {silent_s:.0f} s"
    if not position:
        return why
    if position.frames:
        return f"{why}, at {position.frames[0]}"
    return f"{why}, nor did it answer{STATES.get(position.state or '', '')}"
