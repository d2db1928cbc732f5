"""Detection of ranks that make no progress. Pure: the clock comes in."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

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

    def look(self, mark: Hashable, now: float) -> HangState | None:
        """Return the state if it has changed: hung, or progressing again."""
        still_s = now - self._since
        if mark != self._mark:
            told = self._next_s > self._after_s
            self._mark, self._since, self._next_s = mark, now, self._after_s
            return HangState(hung=False, seconds=still_s) if told else None
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
    newest = {beat.local_rank: beat for beat in beats}
    found = []
    for stack in stacks:
        beat = newest.get(stack.local_rank)
        found.append(
            StuckRank(
                rank=first_rank + stack.local_rank,
                process=stack.process,
                step=beat.step if beat else None,
                part=beat.part if beat else None,
                exchange=beat.exchange if beat else None,
                frames=stack.frames,
                state=stack.state,
            )
        )
    return tuple(found)


def frozen(local_rank: int, silent_s: float, position: StuckRank | None) -> str:
    """The reason why a rank was killed, with its position."""
    why = f"frozen: local rank {local_rank} gave no sign of life for {silent_s:.0f} s"
    if not position:
        return why
    return (
        f"{why}, at {position.frames[0]}"
        if position.frames
        else f"{why}, nor did it answer{STATES.get(position.state or '', '')}"
    )
