"""Usage of CPU, memory and GPU of a node, every few seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import pynvml

from trainer import limits

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


def run(node: str, *, interval_s: float, count: int | None, as_json: bool) -> int:
    meter = CpuMeter()
    done = 0
    try:
        while count is None or done < count:
            time.sleep(interval_s)
            usage = read(node, meter)
            print(json.dumps(asdict(usage)) if as_json else as_line(usage), flush=True)
            done += 1
    except KeyboardInterrupt:  # the way to end it
        pass
    return 0


class CpuMeter:
    """Busy share since the last reading: by the cgroup's own count where there is one, else the machine's."""

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
        now, used = self._clock(), self._used()
        before, used_before = self._last
        self._last = (now, used)
        if used is None or used_before is None or now <= before:
            return psutil.cpu_percent()
        return 100 * (used - used_before) / (now - before) / self.cpus


def read(node: str, meter: CpuMeter) -> ResourceUsage:
    memory = psutil.virtual_memory()
    limit, used = limits.memory_limit(), limits.memory_used()
    limited = limit is not None and limit < memory.total
    return ResourceUsage(
        t=time.time(),
        node=node,
        cpu_percent=round(meter.percent(), 1),
        cpus=meter.cpus,
        ram_used_mib=(used if limited and used is not None else memory.total - memory.available) // MIB,
        ram_limit_mib=(limit if limited and limit is not None else memory.total) // MIB,
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
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    utilization = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuUsage(
        index=index,
        name=str(_ask(pynvml.nvmlDeviceGetName, handle)),
        utilization_percent=utilization.gpu if utilization else None,
        memory_used_mib=memory.used // MIB if memory else None,
        memory_total_mib=memory.total // MIB if memory else None,
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
    )


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def as_line(usage: ResourceUsage) -> str:
    parts = [
        time.strftime("%H:%M:%S", time.localtime(usage.t)) + (f" {usage.node}" if usage.node else ""),
        f"CPU {usage.cpu_percent:5.1f} % of {usage.cpus:g}",
        f"RAM {usage.ram_used_mib} / {usage.ram_limit_mib} MiB",
    ]
    for gpu in usage.gpus:
        parts.append(
            f"GPU {gpu.index} {_or_dash(gpu.utilization_percent)} % {_or_dash(gpu.memory_used_mib)}"
            f" / {_or_dash(gpu.memory_total_mib)} MiB {_or_dash(gpu.temperature_c)} °C"
        )
    return "  ".join(parts if usage.gpus else [*parts, "no GPU"])


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
