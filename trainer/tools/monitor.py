"""Usage of CPU, memory, disk, network and GPU of a node, every few seconds."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path

from contract.resources import GpuUsage, ResourceUsage
from trainer.config import RankInfo
from trainer.resources import ResourceMeter


def run(given: argparse.Namespace, place: RankInfo) -> int:
    meter = ResourceMeter(machine=given.machine, folder=Path())
    try:
        for _ in count() if given.count is None else range(given.count):
            time.sleep(given.interval)
            usage = meter.read()
            sample = {"t": time.time(), "node": place.node, **asdict(usage)}
            print(json.dumps(sample) if given.json else as_line(usage, time.time(), place.node), flush=True)
    except KeyboardInterrupt:  # the way to end it
        pass
    return 0


def as_line(usage: ResourceUsage, t: float, node: str = "") -> str:
    """`t`: seconds since 1970."""
    parts = [
        time.strftime("%H:%M:%S", time.localtime(t)) + (f" {node}" if node else ""),
        f"CPU {usage.cpu_percent:5.1f} % of {usage.cpus:g}",
        f"RAM {usage.ram_used_mib} / {usage.ram_limit_mib} MiB"
        + f" + {usage.swap_used_mib} swap" * (usage.swap_used_mib > 0),
        f"disk {usage.disk_read_mib_s:.1f} read {usage.disk_write_mib_s:.1f} written MiB/s",
        f"network {usage.network_in_mib_s:.1f} in {usage.network_out_mib_s:.1f} out MiB/s",
    ]
    return "  ".join([*parts, *(map(_gpu, usage.gpus) if usage.gpus else ["no GPU"])])


def _gpu(gpu: GpuUsage) -> str:
    values = (gpu.utilization_percent, gpu.memory_used_mib, gpu.memory_total_mib, gpu.temperature_c, gpu.clock_mhz)
    busy, used, total, celsius, clock = ("-" if value is None else value for value in values)
    watts = "-" if gpu.power_w is None else f"{gpu.power_w:.0f}"
    slowed = f" (slowed by {gpu.slowed_by})" if gpu.slowed_by else ""
    return f"GPU {gpu.index} {busy} % {used} / {total} MiB {celsius} °C {watts} W {clock} MHz{slowed}"
