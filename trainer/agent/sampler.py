"""Sample the resources in use on the node while a run is under way: into a file of the run, and as events."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Protocol

from contract.resources import GpuUsage, ResourceUsage

REPORT_EVERY = 5
"""Samples in one event."""
MOST_BYTES = 8 * 1024 * 1024
"""Size of the file before it is set aside as `….1`, in place of an earlier one: about ten hours of samples each."""


class Readings(Protocol):
    def read(self) -> ResourceUsage: ...


class ResourceSampler:
    """A thread. Whatever fails in it, the run continues without samples."""

    def __init__(
        self,
        file: Path,
        report: Callable[[ResourceUsage], None],
        *,
        every_s: float,
        meter: Callable[[], Readings],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`meter` is called in the thread: NVML may take its time. `every_s` 0: nothing is sampled."""
        self._file, self._report, self._every_s, self._meter = file, report, every_s, meter
        self._most_bytes = most_bytes
        self._over = Event()
        self._complained = False
        if every_s > 0:
            with suppress(RuntimeError):  # no thread is left
                Thread(target=self._run, daemon=True, name="resources").start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        try:
            meter = self._meter()
            taken: list[ResourceUsage] = []
            while not self._over.wait(self._every_s):
                taken.append(meter.read())
                self._keep(taken[-1])
                if len(taken) == REPORT_EVERY:
                    self._report(summary(taken))
                    taken = []
        except Exception as error:  # an image without psutil, a file of /proc that is not there
            print(f"resources are not sampled: {error!r}", file=sys.stderr, flush=True)

    def _keep(self, usage: ResourceUsage) -> None:
        line = json.dumps({"t": round(time.time(), 1), **asdict(usage)}) + "\n"
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
                size = file.tell()
            if size > self._most_bytes:
                self._file.replace(f"{self._file}.1")
        except OSError as error:  # a full disk: the events still come
            if not self._complained:
                self._complained = True
                print(f"samples of resources are not kept: {error}", file=sys.stderr, flush=True)


def summary(taken: Sequence[ResourceUsage]) -> ResourceUsage:
    """Means of rates and shares, the highest levels, and the newest of what else there is."""
    last = taken[-1]
    by_gpu = zip(*(one.gpus for one in taken), strict=False)  # a card may have been lost
    return replace(
        last,
        cpu_percent=_mean([one.cpu_percent for one in taken]),
        ram_used_mib=max(one.ram_used_mib for one in taken),
        swap_used_mib=max(one.swap_used_mib for one in taken),
        disk_read_mib_s=_mean([one.disk_read_mib_s for one in taken]),
        disk_write_mib_s=_mean([one.disk_write_mib_s for one in taken]),
        network_in_mib_s=_mean([one.network_in_mib_s for one in taken]),
        network_out_mib_s=_mean([one.network_out_mib_s for one in taken]),
        gpus=tuple(_gpu_summary(readings) for readings in by_gpu),
    )


def _gpu_summary(taken: Sequence[GpuUsage]) -> GpuUsage:
    busy = [one.utilization_percent for one in taken if one.utilization_percent is not None]
    used = [one.memory_used_mib for one in taken if one.memory_used_mib is not None]
    celsius = [one.temperature_c for one in taken if one.temperature_c is not None]
    watts = [one.power_w for one in taken if one.power_w is not None]
    return replace(
        taken[-1],
        utilization_percent=round(fmean(busy)) if busy else None,
        memory_used_mib=max(used, default=None),
        temperature_c=max(celsius, default=None),
        power_w=_mean(watts) if watts else None,
        slowed_by=next((one.slowed_by for one in reversed(taken) if one.slowed_by), ""),
    )


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 3)
