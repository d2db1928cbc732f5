"""Do all ranks reach each other? One known sum, and how long the way takes.

Start it under torchrun, or on each machine with MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK set.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.config import Place, TrainOptions
from trainer.engine.device import prepare_hardware
from trainer.engine.events import Events
from trainer.engine.group import Group
from trainer.engine.process_group import join, leave
from trainer.errors import TrainerError

REPEATS = 10
LARGE = 1 << 20
"""Numbers of 4 bytes each: as much as one bucket of gradients of a small model."""


def run(place: Place, backend: str) -> int:
    code = 0
    try:
        record(_check)(place, place.backend if backend == "auto" else backend)
    except TrainerError as error:
        Events(place).failed(error)
        code = error.exit_code
    except RuntimeError as error:
        print(f"{place.name}: the others stopped answering: {error}", file=sys.stderr)
        code = 1
    return leave(place, code)


def _check(place: Place, backend: str) -> None:
    hardware = prepare_hardware(place, TrainOptions(amp=False))
    if place.world_size == 1:
        print("WORLD_SIZE is 1: this process is alone, there is nobody to reach", flush=True)
    with join(place, hardware.device, backend) as group:
        judge(group)


def judge(group: Group) -> None:
    """The ranks' numbers are 1 to world_size, so that a rank counted twice or left out shows in their sum."""
    place = group.place
    found = _sum_of_ranks(group, 1)
    expected = place.world_size * (place.world_size + 1) / 2
    small, large = _latency_ms(group, 1), _latency_ms(group, LARGE)
    # One write with its newline: unbuffered, print makes two, and the lines of several ranks run together.
    sys.stdout.write(
        f"{place.name}: backend {group.backend}, {group.device}, all_reduce {found:g} (expected {expected:g})"
        f" {'OK' if found == expected else 'WRONG'}, {small:.2f} ms, 4 MiB {large:.1f} ms\n"
    )
    sys.stdout.flush()
    if found != expected:
        raise TrainerError(f"{place.name}: all_reduce gave {found:g}, expected {expected:g}")


def _sum_of_ranks(group: Group, count: int) -> float:
    tensor = torch.full((count,), float(group.place.rank + 1), device=group.device)
    group.all_reduce(tensor)
    return float(tensor[0])


def _latency_ms(group: Group, count: int) -> float:
    """The median, as the first ones open connections."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        _sum_of_ranks(group, count)  # reading the sum waits for it, on a GPU too
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3
