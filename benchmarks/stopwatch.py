"""Measurement of a candidate in its own process: time of its steps, memory, hardware.

torch is imported by the candidate, not by this module: settings before the import belong to the candidate.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Figures = Mapping[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run of one candidate."""

    units_per_s: float
    unit: str
    step_s: float | None = None
    cpu_s: float | None = None
    """CPU seconds of one step: excludes other processes of a shared machine, includes spinning OMP threads."""
    start_s: float | None = None
    """Time from the start of the candidate to the first timed step: imports, building, compiling, warm-up steps."""
    peak_mib: float | None = None
    """Peak of allocated memory on CUDA, otherwise the peak resident memory of the process."""
    reserved_mib: float | None = None
    """Peak of reserved memory on CUDA, which must fit on the GPU."""
    loss: float | None = None
    more: Figures = field(default_factory=dict)
    """Additional columns of this benchmark."""
    machine: Figures = field(default_factory=dict)


class Stopwatch:
    """Times any loop: after `warmup` steps `windows` of `steps` each, back to back; the median window counts.

    `after` is called at the end of each step with its number, `measured` at the end. The device is synchronized between
    windows, not within them. With a `turn`, the contestant is warmed up beside others and then waits until it is alone:
    `settle` steps again, the windows, and this `turn.count` times. Memory is the peak since the last wait.
    """

    def __init__(
        self,
        warmup: int,
        steps: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        windows: int = 1,
        settle: int = 0,
        turn: Turn | None = None,
    ) -> None:
        self.warmup, self.steps, self.windows, self.settle = warmup, steps, windows, settle
        self._turn, self._turns = turn, turn.count if turn else 1
        self._per_turn = settle + windows * steps
        self._clock = clock
        self._started = clock()
        self._ready = 0.0
        self._marks: list[tuple[float, float]] = []
        """Wall and CPU time at the beginning of each window of this turn, and at the end of the last."""
        self._step_s: list[float] = []
        self._cpu_s: list[float] = []
        self._memory: dict[str, float | None] = {}

    @classmethod
    def of(cls, given: Namespace, *, warmup: int | None = None) -> Stopwatch:
        """Stopwatch of a candidate, by its benchmark's options."""
        return cls(
            given.warmup if warmup is None else warmup,
            given.steps,
            getattr(given, "clock", time.perf_counter),
            windows=given.windows,
            settle=given.settle_steps,
            turn=Turn.from_environ(os.environ),
        )

    @property
    def last(self) -> int:
        """Total number of steps that the candidate has to run."""
        return self.warmup + self._turns * self._per_turn

    def after(self, step: int) -> bool:
        """Return whether the measurement is complete."""
        done = step - self.warmup
        if done < 0 or step > self.last:
            return step >= self.last
        if done % self._per_turn == 0:
            if self._marks:
                self._end_window()
                self._end_turn()
            if step < self.last:
                self._begin_turn()
        of_turn = done % self._per_turn - self.settle
        if step < self.last and of_turn >= 0 and of_turn % self.steps == 0:
            self._end_window()
        return step >= self.last

    def measured(
        self, units_per_step: float, unit: str, *, loss: float | None = None, more: Figures | None = None
    ) -> Measured:
        if not self._step_s or self._marks:
            raise RuntimeError(f"the candidate ended before step {self.last}: nothing was measured")
        step_s = median(self._step_s)
        spread: Figures = {}
        if len(self._step_s) > 1:
            spread = {"slowest": units_per_step / max(self._step_s), "fastest": units_per_step / min(self._step_s)}
        return Measured(
            units_per_s=units_per_step / step_s,
            unit=unit,
            step_s=step_s,
            cpu_s=median(self._cpu_s),
            start_s=self._ready - self._started,
            loss=loss,
            more={**spread, **(more or {})},
            machine=machine(),
            **self._memory,
        )

    def _begin_turn(self) -> None:
        synchronize()
        self._ready = self._ready or self._clock()
        if self._turn:
            free_cache()
            self._turn.wait()
            reset_peak()

    def _end_window(self) -> None:
        synchronize()
        self._marks.append((self._clock(), time.process_time()))
        if len(self._marks) > 1:
            (wall, cpu), (wall_now, cpu_now) = self._marks[-2:]
            self._step_s.append((wall_now - wall) / self.steps)
            self._cpu_s.append((cpu_now - cpu) / self.steps)

    def _end_turn(self) -> None:
        self._marks.clear()
        self._memory = memory()
        if self._turn:
            self._turn.report(self._step_s[-self.windows :], self._memory)


OVER = "no turn was given: the measurement has ended"


class Turn:
    """A contestant's side of taking turns: it reports that it is warmed up, and waits for its own.

    Over a socket that it inherits: lines of JSON, a word in the other direction.
    """

    VARIABLE = "ORCH_BENCHMARK_TURN"
    """Environment variable: descriptor of the socket and number of turns, as in `5,2`."""

    def __init__(self, connection: socket.socket, count: int) -> None:
        self._connection, self._lines = connection, connection.makefile("r", encoding="utf-8")
        self.count = count

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Turn | None:
        if not (value := environ.get(cls.VARIABLE)):
            return None
        descriptor, count = value.split(",")
        return cls(socket.socket(fileno=int(descriptor)), int(count))

    def wait(self) -> None:
        """Return when it is this contestant's turn. SystemExit: the measurement has ended."""
        self._send({"ready": True})
        if not self._lines.readline():
            raise SystemExit(OVER)

    def report(self, step_s: Sequence[float], memory: Mapping[str, float | None]) -> None:
        """Send what was measured in this turn."""
        self._send({"step_ms": [round(seconds * 1e3, 4) for seconds in step_s], **memory})

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise SystemExit(OVER) from error

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def free_cache() -> None:
    """Return to the device what torch keeps without using it: others compile meanwhile."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def reset_peak() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


def memory() -> dict[str, float | None]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return {
            "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
            "reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        }
    return {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "reserved_mib": None}


_THREADS = ("OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_SPINCOUNT", "MALLOC_CONF", "LD_PRELOAD")
"""Environment variables that change a CPU's speed."""


def machine() -> dict[str, float | str]:
    """Hardware and libraries of this process."""
    found: dict[str, float | str] = {"python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0))}
    found |= {name: value for name in _THREADS if (value := os.environ.get(name))}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found |= {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "isa": torch.backends.cpu.get_cpu_capability(),
        }
        if torch.cuda.is_available():
            found["gpu"] = torch.cuda.get_device_name()
            found["cuda"] = str(torch.version.cuda)
    return found
