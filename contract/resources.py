"""Resources in use on a node, as its agent and `trainer monitor` report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contract.json_reader import from_json


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """None: the card does not report this value, as many GeForce cards do not."""

    index: int
    name: str
    utilization_percent: int | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    clock_mhz: int | None = None
    """Clock of the multiprocessors."""
    slowed_by: str = ""
    """Reason why the driver keeps the clock low, such as "temperature"; empty: it does not, or does not tell."""


@dataclass(frozen=True, kw_only=True)
class ResourceUsage:
    """CPU and memory are those of the container where it has limits; disk and network those of the machine."""

    cpu_percent: float
    """Share of `cpus`: 100 is all that may be used."""
    cpus: float
    ram_used_mib: int
    ram_limit_mib: int
    swap_used_mib: int = 0
    disk_free_mib: int | None = None
    """Free space in the file system of the run's folder."""
    disk_read_mib_s: float = 0.0
    disk_write_mib_s: float = 0.0
    network_in_mib_s: float = 0.0
    network_out_mib_s: float = 0.0
    gpus: tuple[GpuUsage, ...] = ()


def read_usage(values: Any) -> ResourceUsage:
    """Read the values of a `resources` event. ValueError: they are none."""
    return from_json(ResourceUsage, values)
