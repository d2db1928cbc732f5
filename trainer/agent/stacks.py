"""Positions of the ranks of a node: their Python stacks, requested by a signal, written by faulthandler.

faulthandler answers from C, also while the interpreter is blocked. A process that is stopped, or that the kernel holds
(state D), runs no handler, and does not answer.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.agent import rank_status

SIGNAL = signal.SIGRTMIN + 10
"""Signal other than SIGUSR1 and 2: schedulers warn by them, Lightning saves on one, and torch uses SIGUSR2."""
ANSWER_S = 3.0
"""Time for an answer; it takes a millisecond on an idle machine."""
MOST_FRAMES = 8
LONGEST = 200
"""Characters of a frame."""
_SUFFIX = ".stack"
_OUTERMOST = str(Path(__file__).with_name("warm_process.py"))
"""File whose frames are below those of a forked rank."""
_THREAD = re.compile(r"^(?:Thread|(?P<current>Current thread)) 0x", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Stack:
    local_rank: int
    process: int
    frames: tuple[str, ...]
    """Frames of the main thread, the innermost first, `FILE:LINE in FUNCTION`; empty: no answer."""
    state: str
    """The kernel's letter: R runs, S sleeps, T is stopped, D waits for a disk or a driver."""


def register(environ: Mapping[str, str]) -> None:
    """Register the handler of requests in a rank, if an agent sends them; not in the processes that the rank starts."""
    folder, local_rank = environ.get(rank_status.FOLDER), environ.get("LOCAL_RANK", "")
    if not folder or not local_rank.isdigit():
        return
    path = Path(folder) / f"{local_rank}{_SUFFIX}"
    with contextlib.suppress(OSError):
        if path.exists() and not _status(_process(path)):  # of a rank that has ended: a script may start several
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # for as long as the process lives
        os.write(descriptor, f"{os.getpid():>10}\n".encode())
        faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)


class StackRequest:
    """A request to every registered rank, without waiting for the answers."""

    def __init__(self, folder: Path, now: float) -> None:
        self._until = now + ANSWER_S
        self._files = sorted(folder.glob(f"[0-9]*{_SUFFIX}"))
        self._before = {path: path.stat().st_size for path in self._files}
        self._asked = [path for path in self._files if _signalled(_process(path))]
        self._sizes = dict(self._before)

    def answer(self, now: float) -> list[Stack] | None:
        """Stacks of the live ranks, by local rank; None while some may still answer."""
        before, self._sizes = self._sizes, {path: path.stat().st_size for path in self._files}
        written = self._sizes == before and all(self._sizes[path] > self._before[path] for path in self._asked)
        if not written and now < self._until:
            return None
        stacks = [_stack(path, self._before[path]) for path in self._files]
        return [stack for stack in stacks if stack.state not in ("", "Z")]


def _stack(path: Path, since: int) -> Stack:
    process, text = _process(path), path.read_bytes()[since:].decode(errors="replace")
    return Stack(
        local_rank=int(path.stem), process=process, frames=tuple(main_thread(text))[:MOST_FRAMES], state=_state(process)
    )


def main_thread(text: str) -> Iterator[str]:
    """The frames of the main thread in what faulthandler wrote of all. A signal to a process comes to its main thread,
    the current one; where another took it, the main thread is the oldest, which is written last."""
    begins = list(_THREAD.finditer(text))
    ends = [*(begin.start() for begin in begins[1:]), len(text)]
    blocks = [text[one.end() : other] for one, other in zip(begins, ends, strict=False)]
    current = [block for begin, block in zip(begins, blocks, strict=True) if begin["current"]]
    for found in _FRAME.finditer((current or blocks or [""])[-1]):
        if found["file"] == _OUTERMOST:
            return
        yield f"{found['file']}:{found['line']} in {found['function']}"[-LONGEST:]


def _process(path: Path) -> int:
    with path.open() as file:
        word = file.readline().strip()
    return int(word) if word.isdigit() else 0


def _signalled(process: int) -> bool:
    """Send the signal, unless the process lacks the handler, as it would die. Return whether it was sent."""
    caught = next((line for line in _status(process) if line.startswith("SigCgt:")), "SigCgt: 0")
    if not int(caught.split()[1], 16) >> (SIGNAL - 1) & 1:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, SIGNAL)
        return True
    return False


def _state(process: int) -> str:
    return next((line.split()[1] for line in _status(process) if line.startswith("State:")), "")


def _status(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/status").read_text().splitlines() if process else []
    except OSError:
        return []
