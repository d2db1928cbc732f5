"""Measurement of a candidate in its own process: time of its steps, memory, hardware.

torch is imported by the candidate, not by this module: settings before the import belong to the candidate.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """From the start of the candidate to the first timed step: imports, building, compiling, warm-up steps."""
    peak_mib: float | None = None
    """On CUDA the peak of allocated memory, otherwise the peak resident memory of the process."""
    reserved_mib: float | None = None
    """On CUDA the peak of reserved memory, which must fit on the GPU."""
    loss: float | None = None
    more: Figures = field(default_factory=dict)
    """Additional columns of this benchmark."""
    machine: Figures = field(default_factory=dict)


class Stopwatch:
    """Times `steps` steps of any loop after `warmup` others; synchronizes the device at both ends, not in between.

    `after` is called with the number of each step that has ended, `measured` at the end.
    """

    def __init__(self, warmup: int, steps: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.warmup = warmup
        self.steps = steps
        self._clock = clock
        self._started = clock()
        self._began = self._ended = 0.0
        self._cpu_began = self._cpu_ended = 0.0
        self._memory: dict[str, float | None] = {}

    @property
    def last(self) -> int:
        """Total number of steps that the candidate has to run."""
        return self.warmup + self.steps

    def after(self, step: int) -> bool:
        """Whether the measurement is complete."""
        if step == self.warmup:
            synchronize()
            self._began, self._cpu_began = self._clock(), time.process_time()
        elif step == self.last:
            synchronize()
            self._ended, self._cpu_ended = self._clock(), time.process_time()
            self._memory = memory()
        return step >= self.last

    def measured(
        self, units_per_step: float, unit: str, *, loss: float | None = None, more: Figures | None = None
    ) -> Measured:
        if not self._ended or not self._began:
            raise RuntimeError(f"the candidate ended before step {self.last}: nothing was measured")
        step_s = (self._ended - self._began) / self.steps
        return Measured(
            units_per_s=units_per_step / step_s,
            unit=unit,
            step_s=step_s,
            cpu_s=(self._cpu_ended - self._cpu_began) / self.steps,
            start_s=self._began - self._started,
            loss=loss,
            more=more or {},
            machine=machine(),
            **self._memory,
        )


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
    said: dict[str, float | str] = {"python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0))}
    said |= {name: value for name in _THREADS if (value := os.environ.get(name))}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        said |= {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "isa": torch.backends.cpu.get_cpu_capability(),
        }
        if torch.cuda.is_available():
            said["gpu"] = torch.cuda.get_device_name()
            said["cuda"] = str(torch.version.cuda)
    return said
