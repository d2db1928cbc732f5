"""`--profile`: where the time of some steps goes, as a trace for experts and one page for everyone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from trainer.agent import heartbeat
from trainer.engine.reporting.profile_page import Operator, Page, busy_share, device_intervals, read_trace, write_page

SKIPPED = 5
"""Steps before the first that is recorded: they compile, allocate and fill caches."""
LARGE_BYTES = 20 << 20
"""A trace above this is compressed; viewers open both kinds."""


class StepProfiler:
    """Profiler around the training loop. `part` marks what a step consists of, `step` its end; without `active` they do
    nothing. `folder` gets `trace.json` (or `trace.json.gz`) and `summary.md`."""

    def __init__(self, folder: Path, steps: int, device: torch.device, active: bool) -> None:
        self._folder, self._steps, self._device = folder, steps, device
        self._ended = 0
        """Steps since the start."""
        self._stopwatch = _Stopwatch(device)
        self._end_step: Callable[[], None] = lambda: None
        self._profiler: Any = None
        self._recording = False
        self._active = active and steps > 0
        self.ended_early = False
        """True if the run was over before all steps were recorded: `outcome` is news then."""
        self.summary: Path | None = None
        """The page, once it is written."""

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A run that ends early leaves what there is of its steps."""
        self.ended_early = self._active
        if self._recording:
            if error is None and self._ended > SKIPPED:
                self._finish()
            else:
                self._stop()

    @property
    def outcome(self) -> str:
        """Text for people."""
        if self.summary:
            return f"profile: {self.summary}"
        return f"profile: nothing was recorded, as the first {SKIPPED} steps are skipped and the run ended too early"

    def part(self, name: str) -> AbstractContextManager[object]:
        """data, forward, backward, reduce, optimizer, …: side by side, not one in another. Also what a rank that stands
        still is said to be at."""
        heartbeat.part(name)
        return self._part(name) if self._recording else nullcontext()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(name):
            stop = self._stopwatch.start(name)
            yield
            stop()

    def step(self) -> Path | None:
        """The end of a step; once, after the last recorded one, where the summary lies."""
        if not self._active:
            return None
        self._ended += 1
        if self._ended == SKIPPED:
            self._start()
        elif self._recording:
            self._end_step()
            if self._ended == SKIPPED + self._steps:
                self._finish()
                return self.summary
            self._end_step = self._stopwatch.start("")
        return None

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self._profiler.start()
        self._recording = True
        self._end_step = self._stopwatch.start("")

    def _stop(self) -> None:
        self._recording = False
        self._profiler.stop()

    def _finish(self) -> None:
        totals = self._stopwatch.read()
        self._stop()
        self._active = False
        steps = self._ended - SKIPPED
        self._folder.mkdir(parents=True, exist_ok=True)
        trace = _export(self._profiler, self._folder)
        whole_ms = totals.pop("")
        on_gpu = self._device.type == "cuda"
        page = Page(
            device=torch.cuda.get_device_name(self._device) if on_gpu else "CPU",
            steps=steps,
            step_ms=whole_ms / steps,
            parts={name: ms / steps for name, ms in totals.items()},
            operators=_operators(self._profiler, on_gpu, steps),
            memory_mib=_peak_bytes(self._device) / 2**20,
            busy=busy_share(device_intervals(read_trace(trace)), whole_ms * 1000) if on_gpu else None,
            trace=trace.name,
        )
        self.summary = write_page(page, self._folder)


class _Stopwatch:
    """Milliseconds by name. On a GPU by its own events: the process only hands it work and runs ahead of it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._marks: list[tuple[str, Any, Any]] = []

    def start(self, name: str) -> Callable[[], None]:
        began = self._now()
        return lambda: self._marks.append((name, began, self._now()))

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own gap
        event.record()
        return event

    def read(self) -> dict[str, float]:
        if self._cuda:
            torch.cuda.synchronize(self._device)
        totals: dict[str, float] = {}
        for name, began, ended in self._marks:
            ms = began.elapsed_time(ended) if self._cuda else (ended - began) * 1000
            totals[name] = totals.get(name, 0.0) + ms
        return totals


def _export(profiler: Any, folder: Path) -> Path:
    plain, packed = folder / "trace.json", folder / "trace.json.gz"
    for old in (plain, packed):
        old.unlink(missing_ok=True)
    profiler.export_chrome_trace(str(plain))
    if plain.stat().st_size <= LARGE_BYTES:
        return plain
    import gzip
    import shutil

    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=5) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()
    return packed


def _operators(profiler: Any, on_gpu: bool, steps: int) -> tuple[Operator, ...]:
    """Operators by the time that each took itself, without what it called: kernels on a GPU, operators on a CPU."""
    wanted = "CUDA" if on_gpu else "CPU"
    found = [
        Operator(
            name=event.key,
            ms=(event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1000 / steps,
            calls=round(event.count / steps),
        )
        for event in profiler.key_averages()
        if event.device_type.name == wanted and not event.is_user_annotation
    ]
    return tuple(sorted(found, key=lambda operator: -operator.ms))


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
