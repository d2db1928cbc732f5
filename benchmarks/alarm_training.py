"""Common parts of the scripts of `benchmarks.alarms`: a training of a few lines, and marks of its progress.

`ALARMS_SCALE` shortens all times.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCALE = float(os.environ.get("ALARMS_SCALE", "1"))
LONG_S, IDLE_S = 85.0 * SCALE, 150.0 * SCALE
"""Longer than it takes until a rank that others wait for is reported; until a run in which no rank does anything is."""
FOREVER_S = 36_000.0
RANK = int(os.environ.get("RANK", "0"))


def mark(name: str) -> None:
    """Leave the time of this moment in the working folder, without a line of output."""
    Path(f"{name}-{RANK}").touch()


def for_seconds(seconds: float, pause_s: float = 0.1) -> Iterator[int]:
    """Numbers of steps for about so long."""
    for number in range(int(seconds / pause_s)):
        yield number
        time.sleep(pause_s)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.sha256(bytes(1_000_000)).digest()


# ── What most scripts have ────────────────────────────────────────────────────────────────────────────────────────────


def joined() -> tuple[Any, Any]:
    """torch and torch.distributed, in a process group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mark("begins")
    return torch, dist


class Training:
    """A model in DistributedDataParallel with its optimizer."""

    def __init__(self, *, ddp: bool = True, kind: str = "SGD", group: bool = True) -> None:
        if group:
            self.torch, self.dist = joined()
        else:
            import torch

            self.torch, self.dist = torch, None
            torch.set_num_threads(1)
            mark("begins")
        nn = self.torch.nn
        self.model: Any = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        if ddp:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer: Any = getattr(self.torch.optim, kind)(self.model.parameters(), lr=1e-3)

    def loss(self) -> Any:
        samples = self.torch.randn(16, 64)
        return ((self.model(samples) - samples) ** 2).mean()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def steps(self, number: int = 20) -> Training:
        for _ in for_seconds(number * 0.02, 0.02):
            self.step()
        return self
