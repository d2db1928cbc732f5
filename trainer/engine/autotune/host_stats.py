"""Resources of a node around the training: memory left, the rate of its disk, the rate at which its data comes."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from dataclasses import fields
from pathlib import Path

import psutil
import torch

from contract.cost_model.measurement import HostStats
from trainer.engine.group import Group
from trainer.limits import memory_limit
from trainer.out_of_memory import gpu_memory

BLOCK = 4 << 20
MOST = 64 * BLOCK
"""Bytes written to see how fast a disk is."""
LONG_ENOUGH_S = 0.5


def look_around(run_dir: Path, device: torch.device, loaded_per_s: float) -> HostStats:
    """Measure after a step, whose peak is the training's: forward, backward, optimizer."""
    write, read = disk_rates(run_dir)
    on_gpu = device.type == "cuda"
    return HostStats(
        loaded_per_s=loaded_per_s,
        memory_peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        memory_limit=node_memory(),
        gpu_peak=torch.cuda.max_memory_allocated(device) if on_gpu else 0.0,
        gpu_memory=float(gpu_memory(device)),
        disk_write=write,
        disk_read=read,
    )


def node_memory() -> int:
    """Bytes that the processes of this container, or of this machine, may have together."""
    machine: int = psutil.virtual_memory().total
    return min(memory_limit() or machine, machine)


def of_all(own: HostStats, group: Group) -> tuple[HostStats, ...]:
    """Every rank's, by rank. To be called by all ranks."""
    columns = {field.name: group.all_gather_scalar(float(getattr(own, field.name))) for field in fields(own)}
    by_rank = zip(*columns.values(), strict=True)
    return tuple(HostStats(**dict(zip(columns, values, strict=True))) for values in by_rank)


def disk_rates(folder: Path) -> tuple[float, float]:
    """Bytes per second written, with fsync, and read back past the kernel's cache; (0, 0) where nothing can be written.
    The file has no name any more when it is measured, and so cannot stay."""
    block = os.urandom(BLOCK)  # some disks and file systems compress
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            descriptor, written, began = file.fileno(), 0, time.perf_counter()
            while written < MOST and time.perf_counter() - began < LONG_ENOUGH_S:
                written += os.write(descriptor, block)
            os.fsync(descriptor)
            write_s = time.perf_counter() - began
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(descriptor, 0, os.SEEK_SET)
            read, began = 0, time.perf_counter()
            while time.perf_counter() - began < LONG_ENOUGH_S and (part := os.read(descriptor, BLOCK)):
                read += len(part)
            return written / write_s, read / (time.perf_counter() - began)
    except OSError:
        return 0.0, 0.0
