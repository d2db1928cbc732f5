"""A sign of life of each rank, so that one that is frozen is told from one that waits for the others; and in it what
the rank is about.

A thread writes it: a rank in a collective goes on beating, one that is stopped, swapped out for good or caught in a
driver does not. The agent of torchrun looks at exit codes alone, and would wait for such a rank for ever. What the rank
is about costs it an assignment (0.1 µs): the thread writes it down with the next beat.
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
"""The variable that names the folder; in memory, so that a slow disk is not taken for a slow rank."""
EVERY_S = 1.0
RESTING = "left-out"
"""What a rank is about that takes no part: it is not expected to come on."""
_WIDTH = 40


@dataclass
class _Doing:
    step: int = 0
    part: str = ""
    exchanges: dict[int, str] = field(default_factory=dict)
    """The collective that each thread is in."""
    done: int = 0
    """Parts and collectives so far."""


_doing = _Doing()
"""Of this process, which is one rank."""


def begin(environ: Mapping[str, str]) -> None:
    """Beat from now on, where somebody listens; to be called by each rank."""
    if folder := environ.get(FOLDER):
        path = Path(folder) / environ.get("LOCAL_RANK", "0")
        threading.Thread(target=_beat, args=(path,), daemon=True, name="beat").start()


def step(number: int) -> None:
    """The optimizer step that begins."""
    _doing.step = number


def part(name: str) -> None:
    """What of the step begins: one word."""
    _doing.part = name
    _doing.done += 1


@contextmanager
def exchange(name: str) -> Iterator[None]:
    """Around what waits for the other ranks: one word."""
    thread = threading.get_ident()
    _doing.exchanges[thread] = name
    try:
        yield
        _doing.done += 1  # not where it failed: giving up is no progress
    finally:
        _doing.exchanges.pop(thread, None)


def _beat(path: Path) -> None:
    # One clock for all processes of a machine, which nobody sets.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        while True:
            os.pwrite(descriptor, _line(), 0)
            time.sleep(EVERY_S)
    except Exception as error:  # whatever it is: a rank that can give no sign is not to be taken for a frozen one
        path.unlink(missing_ok=True)
        print(f"this rank gives no sign of life any more: {type(error).__name__}: {error}", file=sys.stderr)


def _line() -> bytes:
    part, exchanges = _doing.part or "-", "+".join(sorted({*_doing.exchanges.copy().values()})) or "-"
    about = f"{_doing.step:>10} {_doing.done:>12} {part:>{_WIDTH}.{_WIDTH}} {exchanges:>{_WIDTH}.{_WIDTH}}"
    return f"{os.getpid():>10} {time.monotonic():>20.3f} {about}\n".encode()


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A rank's newest."""

    local_rank: int
    process: int
    at_s: float
    """Monotonic."""
    step: int
    done: int
    part: str
    exchange: str
    """Empty where it waits for nobody, as far as it knows: what a backward pass sums is DDP's own."""


def signs(folder: Path) -> Iterator[Sign]:
    """Of each rank that beats."""
    for path in sorted(folder.iterdir()):
        words = path.read_text().split() if path.name.isdigit() else []
        if len(words) == 6:
            part, exchange = ("" if word == "-" else word for word in words[4:])
            yield Sign(
                local_rank=int(path.name), process=int(words[0]), at_s=float(words[1]), step=int(words[2]),
                done=int(words[3]), part=part, exchange=exchange,
            )  # fmt: skip
