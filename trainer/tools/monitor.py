"""Usage of CPU, memory and GPU of a node, every few seconds."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import psutil
import pynvml

from trainer import limits
from trainer.config import RankInfo

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    index: int
    name: str
    utilization_percent: int | None
    memory_used_mib: int | None
    memory_total_mib: int | None
    temperature_c: int | None


@dataclass(frozen=True, kw_only=True)
class ResourceUsage:
    t: float
    node: str
    cpu_percent: float
    """Share of `cpus`: 100 is all that this container may use."""
    cpus: float
    ram_used_mib: int
    ram_limit_mib: int
    gpus: tuple[GpuUsage, ...]


def run(given: argparse.Namespace, place: RankInfo) -> int:
    machine = given.machine
    meter = CpuMeter(used=lambda: None, cpus=float(psutil.cpu_count() or 1)) if machine else CpuMeter()
    try:
        for _ in count() if given.count is None else range(given.count):
            time.sleep(given.interval)
            usage = read(place.node, meter, limit=None if machine else limits.memory_limit())
            print(json.dumps(asdict(usage)) if given.json else as_line(usage), flush=True)
    except KeyboardInterrupt:  # the way to end it
        pass
    return 0


class CpuMeter:
    """Busy share since the last reading, by the cgroup's counter or, without one, the machine's."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float | None] = limits.cpu_seconds,
        cpus: float | None = None,
    ) -> None:
        self._clock = clock
        self._used = used
        self.cpus = cpus or limits.cpu_quota() or float(psutil.cpu_count() or 1)
        self._last = (clock(), used())
        psutil.cpu_percent()  # the first reading only starts the count

    def percent(self) -> float:
        before, used_before = self._last
        now, used = self._last = (self._clock(), self._used())
        if used is None or used_before is None or now <= before:
            return psutil.cpu_percent()
        return 100 * (used - used_before) / (now - before) / self.cpus


def read(node: str, meter: CpuMeter, *, limit: int | None) -> ResourceUsage:
    """Read all values. `limit`: bytes of memory that the container may use; None: the machine's memory is reported."""
    memory = psutil.virtual_memory()
    total, used = memory.total, memory.total - memory.available
    if limit is not None and limit < total:
        total, used = limit, limits.memory_used() or used
    return ResourceUsage(
        t=time.time(),
        node=node,
        cpu_percent=round(meter.percent(), 1),
        cpus=meter.cpus,
        ram_used_mib=used // MIB,
        ram_limit_mib=total // MIB,
        gpus=read_gpus(),
    )


def read_gpus() -> tuple[GpuUsage, ...]:
    """Read all NVIDIA GPUs; none without a driver. Values that a card does not report (GeForce) are None."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_read_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(index: int) -> GpuUsage:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(handle, *arguments)
        except pynvml.NVMLError:
            return None

    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    utilization = ask(pynvml.nvmlDeviceGetUtilizationRates)
    return GpuUsage(
        index=index,
        name=str(ask(pynvml.nvmlDeviceGetName)),
        utilization_percent=utilization.gpu if utilization else None,
        memory_used_mib=memory.used // MIB if memory else None,
        memory_total_mib=memory.total // MIB if memory else None,
        temperature_c=ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    )


def as_line(usage: ResourceUsage) -> str:
    parts = [
        time.strftime("%H:%M:%S", time.localtime(usage.t)) + (f" {usage.node}" if usage.node else ""),
        f"CPU {usage.cpu_percent:5.1f} % of {usage.cpus:g}",
        f"RAM {usage.ram_used_mib} / {usage.ram_limit_mib} MiB",
    ]
    for gpu in usage.gpus:
        values = (gpu.utilization_percent, gpu.memory_used_mib, gpu.memory_total_mib, gpu.temperature_c)
        busy, used, total, celsius = ("-" if value is None else value for value in values)
        parts.append(f"GPU {gpu.index} {busy} % {used} / {total} MiB {celsius} °C")
    return "  ".join(parts if usage.gpus else [*parts, "no GPU"])
