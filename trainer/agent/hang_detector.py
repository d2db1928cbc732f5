"""When a node's ranks come on no more, and what is told of each. Pure: the clock comes in."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from trainer.agent.heartbeat import RESTING, Sign
from trainer.agent.stacks import Stack

STATES = {"T": " (it is stopped)", "D": " (the kernel holds it: a disk, a network share or a driver)"}


class Standstill:
    """Hears of any mark of progress; tells of a standstill after `after_s`, and again after twice as long each time."""

    def __init__(self, after_s: float, now: float) -> None:
        self._after_s, self._next_s = after_s, after_s
        self._mark: Hashable = None
        self._since = now

    def look(self, mark: Hashable, now: float) -> tuple[str, float] | None:
        """`stuck` or `moving` with the seconds that nothing moved; None where there is nothing new to be told."""
        still_s = now - self._since
        if mark != self._mark:
            told = self._next_s > self._after_s
            self._mark, self._since, self._next_s = mark, now, self._after_s
            return ("moving", still_s) if told else None
        if still_s < self._next_s:
            return None
        while self._next_s <= still_s:
            self._next_s *= 2
        return "stuck", still_s


def mark_of(signs: Sequence[Sign], lines: int) -> Hashable:
    """Of progress: what the ranks say that they have done; of a script that does not, how much it wrote. Of one that
    takes no part it is enough that it lives."""
    return tuple((sign.local_rank, sign.at_s if sign.exchange == RESTING else sign.done) for sign in signs) or lines


def about(stacks: Iterable[Stack], signs: Iterable[Sign], first_rank: int) -> list[dict[str, Any]]:
    """Each rank's place, for an event."""
    beating = {sign.local_rank: sign for sign in signs}
    told = []
    for stack in stacks:
        sign = beating.get(stack.local_rank)
        said = {"step": sign.step, "part": sign.part, "exchange": sign.exchange} if sign else {}
        head = {"rank": first_rank + stack.local_rank, "process": stack.process}
        told.append({**head, **said, "frames": list(stack.frames), "state": stack.state})
    return told


def frozen(local_rank: int, silent_s: float, place: Mapping[str, Any]) -> str:
    """Why a rank was killed, with what it was at."""
    why = f"frozen: local rank {local_rank} gave no sign of life for {silent_s:.0f} s"
    if not place:
        return why
    frames, state = place["frames"], place["state"]
    return f"{why}, at {frames[0]}" if frames else f"{why}, nor did it answer{STATES.get(state, '')}"
