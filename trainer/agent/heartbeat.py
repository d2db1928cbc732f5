"""Heartbeats of ranks: they distinguish a frozen rank from one that waits for others, and carry its current work.

A thread writes them: a rank in a collective continues, one that is stopped, swapped out or blocked in a driver does
not. torchrun looks at exit codes alone, and would wait for such a rank for ever. To note its current work costs a rank
an assignment (0.1 µs): the thread writes it with the next heartbeat.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "ORCH_BEATS"
"""Environment variable with the path of the folder; in memory, as a slow disk must not look like a slow rank."""
EVERY_S = 1.0
RESTING = "left-out"
"""Exchange of a rank that takes no part: it is not expected to make progress."""
_WIDTH = 40


@dataclass
class _Activity:
    step: int = 0
    part: str = ""
    exchanges: dict[int, str] = field(default_factory=dict)
    """The collective that each thread is in."""
    done: int = 0
    """Number of parts and collectives so far."""


_activity = _Activity()
"""Activity of this process, which is one rank."""


def begin(environ: Mapping[str, str]) -> None:
    """Start the heartbeat thread, if an agent reads it. Every rank calls this."""
    if folder := environ.get(FOLDER):
        path = Path(folder) / environ.get("LOCAL_RANK", "0")
        threading.Thread(target=_beat, args=(path,), daemon=True, name="beat").start()


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
    return _activity.part, "+".join(sorted({*_activity.exchanges.copy().values()}))


def _beat(path: Path) -> None:
    # time.monotonic is the same clock in all processes of a machine, and is never set back.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        while True:
            os.pwrite(descriptor, _line(), 0)
            time.sleep(EVERY_S)
    except Exception as error:  # a rank without a heartbeat must not be taken for a frozen one
        path.unlink(missing_ok=True)
        print(f"this rank sends no heartbeat any more: {type(error).__name__}: {error}", file=sys.stderr)


def _line() -> bytes:
    part, exchanges = (word or "-" for word in position())
    about = f"{_activity.step:>10} {_activity.done:>12} {part:>{_WIDTH}.{_WIDTH}} {exchanges:>{_WIDTH}.{_WIDTH}}"
    return f"{os.getpid():>10} {time.monotonic():>20.3f} {about}\n".encode()


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Newest heartbeat of a rank."""

    local_rank: int
    process: int
    at_s: float
    """Time by the monotonic clock."""
    step: int
    done: int
    part: str
    exchange: str
    """Collective that the rank waits in; empty: none that is noted. DDP's all-reduces in a backward pass are not."""


def newest(folder: Path) -> Iterator[Heartbeat]:
    """Yield the newest heartbeat of each rank that sends any."""
    for path in sorted(folder.iterdir()):
        words = path.read_text().split() if path.name.isdigit() else []
        if len(words) == 6:
            part, exchange = ("" if word == "-" else word for word in words[4:])
            yield Heartbeat(
                local_rank=int(path.name), process=int(words[0]), at_s=float(words[1]), step=int(words[2]),
                done=int(words[3]), part=part, exchange=exchange,
            )  # fmt: skip
