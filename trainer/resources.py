"""Read the resources in use on this node, by psutil and NVML. No CUDA context is made: it would take GPU memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pynvml

from contract.resources import GpuUsage, ResourceUsage
from trainer import limits

MIB = 1 << 20
SLOWED_BY = {
    "power": pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "temperature": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hardware": pynvml.nvmlClocksThrottleReasonHwSlowdown,
}
"""Bits of NVML's reasons for a low clock, except those that the user or an idle card has chosen."""


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


class ResourceMeter:
    """Rates are those since the last reading."""

    def __init__(self, *, machine: bool = False, folder: Path | None = None, interface: str = "") -> None:
        """`machine`: CPU and memory of the whole machine, not of this container. `interface`: the network interface
        that is counted; empty: all but the loopback interface."""
        whole = {"used": lambda: None, "cpus": float(psutil.cpu_count() or 1)} if machine else {}
        self._cpu = CpuMeter(**whole)  # type: ignore[arg-type]  # two options of different types
        self._machine, self._folder, self._interface = machine, folder, interface
        self._counted, self._at = self._count(), time.monotonic()
        self._gpus = _gpu_handles()

    def read(self) -> ResourceUsage:
        limit = None if self._machine else limits.memory_limit()
        memory = psutil.virtual_memory()
        total, used = memory.total, memory.total - memory.available
        if limit is not None and limit < total:
            total, used = limit, limits.memory_used() or used
        before, since, now = self._counted, self._at, time.monotonic()
        self._counted, self._at = self._count(), now
        rates = [
            round(max(0, new - old) / max(now - since, 1e-3) / MIB, 3)
            for new, old in zip(self._counted, before, strict=True)
        ]
        return ResourceUsage(
            cpu_percent=round(self._cpu.percent(), 1),
            cpus=self._cpu.cpus,
            ram_used_mib=used // MIB,
            ram_limit_mib=total // MIB,
            swap_used_mib=psutil.swap_memory().used // MIB,
            disk_free_mib=psutil.disk_usage(str(self._folder)).free // MIB if self._folder else None,
            disk_read_mib_s=rates[0],
            disk_write_mib_s=rates[1],
            network_in_mib_s=rates[2],
            network_out_mib_s=rates[3],
            gpus=tuple(read_gpu(index, handle) for index, handle in enumerate(self._gpus)),
        )

    def _count(self) -> tuple[int, int, int, int]:
        """Bytes so far: read from disks, written to them, received, sent."""
        disk = psutil.disk_io_counters()
        cards = psutil.net_io_counters(pernic=True)
        counted = [
            card for name, card in cards.items() if (name == self._interface if self._interface else name != "lo")
        ]
        return (
            disk.read_bytes if disk else 0,
            disk.write_bytes if disk else 0,
            sum(card.bytes_recv for card in counted),
            sum(card.bytes_sent for card in counted),
        )


def _gpu_handles() -> Sequence[Any]:
    """All NVIDIA GPUs; none without a driver."""
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return ()


def read_gpu(index: int, handle: Any) -> GpuUsage:
    def ask(question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(handle, *arguments)
        except pynvml.NVMLError:
            return None

    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    utilization = ask(pynvml.nvmlDeviceGetUtilizationRates)
    milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage)
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return GpuUsage(
        index=index,
        name=str(ask(pynvml.nvmlDeviceGetName)),
        utilization_percent=utilization.gpu if utilization else None,
        memory_used_mib=memory.used // MIB if memory else None,
        memory_total_mib=memory.total // MIB if memory else None,
        temperature_c=ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else milliwatts / 1000,
        clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        slowed_by=", ".join(reason for reason, bits in SLOWED_BY.items() if reasons & bits),
    )
