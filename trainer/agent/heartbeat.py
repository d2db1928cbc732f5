"""Work that the trainer and the hooks note: step, part of the step, collective. The rank status carries it.

To note it costs an assignment (0.1 µs): the thread of `rank_status` writes it with its next record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from trainer.agent import rank_status

RESTING = "left-out"
"""Exchange of a rank that takes no part: it is not expected to make progress."""


@dataclass
class _Activity:
    step: int = 0
    part: str = ""
    exchanges: dict[int, str] = field(default_factory=dict)
    """The collective that each thread is in."""
    done: int = 0
    """Number of parts and collectives so far."""

    def exchange(self) -> str:
        """Collectives that this process is in; empty: none that is noted. DDP's in a backward pass are not."""
        return "+".join(sorted({*self.exchanges.copy().values()}))


_activity = _Activity()
"""Activity of this process, which is one rank."""


def begin(environ: Mapping[str, str]) -> None:
    """Write the rank status with the work of this process, if an agent reads it. Every rank calls this."""
    rank_status.begin(environ, _activity)


def step(number: int) -> None:
    """Note the optimizer step that begins."""
    _activity.step = number


def current_step() -> int:
    """Return the optimizer step that this process is in; 0 before the first."""
    return _activity.step


def part(name: str) -> None:
    """Note the part of the step that begins: one word."""
    _activity.part = name
    _activity.done += 1


@contextmanager
def exchange(name: str) -> Iterator[None]:
    """Note a wait for other ranks: one word. After a failure it stays, as the place of the failure."""
    thread = threading.get_ident()
    _activity.exchanges[thread] = name
    yield
    _activity.done += 1
    _activity.exchanges.pop(thread, None)


def position() -> tuple[str, str]:
    """Part that this process is in, and its collectives; each empty if there is none."""
    return _activity.part, _activity.exchange()
