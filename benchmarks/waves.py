"""Contestants that warm up together and are measured one after the other.

To start a training costs a minute (imports, compiling, warm-up), to time it two seconds. So all contestants of a wave
start at once; each waits when it is warm, has the device to itself for its turn, and ends. A contestant with several
turns is measured first and again last: what differs is the drift of the device.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.side_by_side import LAST_LINES, ROOT
from benchmarks.stopwatch import Turn

Report = Callable[[Mapping[str, Any]], None]
"""Receiver of results."""
LOOK_S = 0.2
"""Time between two looks whether a contestant has ended."""
TURN_S = 8.0
"""Time that is kept for the turn of each contestant."""
KILLED_S = 10
"""Longest wait for a killed process to leave the process table, and a card's memory with it."""
RESULT_S = 30.0
"""Longest wait for the result of a contestant that was measured."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    part: str
    name: str
    argv: tuple[str, ...]
    """Module and options: a candidate of `side_by_side`, with `--measure`."""
    turns: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Monotonic times."""

    arrive: float
    """A contestant that is not warm by then has no turn."""
    end: float
    """Nothing runs any more after this."""

    @classmethod
    def within(cls, seconds: float, contestants: int) -> Limits:
        """Set limits from now on; the end is reserved for the turns."""
        now = time.monotonic()
        return cls(arrive=now + max(0.6 * seconds, seconds - TURN_S * contestants), end=now + seconds)


def run(contestants: Sequence[Contestant], folder: Path, limits: Limits, report: Report) -> None:
    """Run one wave. `report` receives each result the moment it exists; `folder` holds what the contestants print."""
    inbox: queue.Queue[tuple[_Running, dict[str, Any]]] = queue.Queue()
    with ExitStack() as started:
        running = [started.enter_context(_Running(one, folder, inbox)) for one in contestants]
        _await_ready(running, inbox, min(limits.arrive, limits.end))
        for one in running:
            if not one.ready:
                report(one.failed("ended" if one.ended else "not warm in time"))
                one.kill()
        order = [one for one in running if one.ready]
        for number in range(1, max((one.contestant.turns for one in order), default=0) + 1):
            for one in order:
                if number <= one.contestant.turns and not one.ended:
                    _take_turn(one, number, inbox, limits.end, report)


def _await_ready(running: Sequence[_Running], inbox: queue.Queue[Any], until: float) -> None:
    while any(not one.ready and not one.ended for one in running) and time.monotonic() < until:
        for _ in _messages(inbox):
            pass


def _take_turn(one: _Running, number: int, inbox: queue.Queue[Any], end: float, report: Report) -> None:
    last = number == one.contestant.turns
    one.ready, measured, result = False, False, None
    one.give_turn()
    while not (one.ended or result) and time.monotonic() < end:
        for sender, message in _messages(inbox):
            if sender is one and "step_ms" in message:
                report({"part": one.contestant.part, "name": one.contestant.name, "turn": number, **message})
                measured, end = True, min(end, time.monotonic() + RESULT_S)
        if one.ready and measured and not last:
            return
        result = one.result() if last and measured else None
    # Not its exit is waited for, which takes seconds of the others' time.
    report(result or one.result() or one.failed("ended" if one.ended else "not done in time"))
    one.kill()


def _messages(inbox: queue.Queue[Any]) -> Iterator[tuple[_Running, dict[str, Any]]]:
    """Yield what has arrived, after at most `LOOK_S`; `ready` is noted here."""
    with suppress(queue.Empty):
        sender, message = inbox.get(timeout=LOOK_S)
        sender.ready |= bool(message.get("ready"))
        yield sender, message


def kill(process: int) -> None:
    """Kill a process with all that it has started: torchrun's ranks, too, which are in sessions of their own and would
    keep the card's memory and time."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(started, timeout=KILLED_S)


class _Running:
    """A contestant's process, with all that it starts."""

    def __init__(self, contestant: Contestant, folder: Path, inbox: queue.Queue[Any]) -> None:
        self.contestant, self.ready = contestant, False
        self._out, self._err = (folder / f"{contestant.part}-{contestant.name}.{name}" for name in ("out", "err"))
        ours, theirs = socket.socketpair()
        self._file = ours.makefile("rw", encoding="utf-8")
        ours.close()
        with theirs, self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *contestant.argv],
                cwd=ROOT, env=_environ(theirs.fileno(), contestant), pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._receive, args=(inbox,), daemon=True).start()

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def give_turn(self) -> None:
        with suppress(OSError):  # it has ended meanwhile, which is seen next
            self._file.write("\n")
            self._file.flush()

    def result(self) -> dict[str, Any] | None:
        """The measurement in its last line; None where there is none yet."""
        # Read by a file of our own: the process writes where its own stands.
        output = self._out.read_text("utf-8", errors="replace")
        line = output.strip().rpartition("\n")[2]
        if not output.endswith("\n") or not line.startswith("{"):
            return None
        measured = json.loads(line)
        more = {name: value for name, value in measured.pop("more").items() if value is not None}
        machine = measured.pop("machine")
        found = {name: value for name, value in (measured | more).items() if value is not None}
        return {"part": self.contestant.part, "name": self.contestant.name, **found, "torch": machine.get("torch")}

    def failed(self, why: str) -> dict[str, Any]:
        output = self._err.read_text("utf-8", errors="replace")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        code = self._process.poll()
        return {
            "part": self.contestant.part,
            "name": self.contestant.name,
            "problem": why if code is None else f"{why} with exit code {code}",
            "last_lines": [line[:300] for line in lines[-LAST_LINES:]],
        }

    def kill(self) -> None:
        kill(self._process.pid)
        self._process.wait()

    def _receive(self, inbox: queue.Queue[Any]) -> None:
        with suppress(OSError, ValueError):
            for line in self._file:
                inbox.put((self, json.loads(line)))


def _environ(descriptor: int, contestant: Contestant) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        Turn.VARIABLE: f"{descriptor},{contestant.turns}",
        "OMP_NUM_THREADS": str(min(4, cores)),
        # As our trainer sets it: spinning threads would slow the others down while they compile.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, min(4, cores // 4))),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **contestant.environ,
    }
