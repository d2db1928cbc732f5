"""A small workload that tells what the engine did with it, and fails where it is asked to.

`python -m tests.trainer.observed OPTIONS WISHES`, both as JSON, trains it as one rank of however many.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import cuda

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.data.order import Bucketed, Indices, Order, uniform
from trainer.engine import loop, sync_plan
from trainer.engine.workload import Workload

SAMPLES = 23
KERNELS = {
    "flash": cuda.flash_sdp_enabled,
    "efficient": cuda.mem_efficient_sdp_enabled,
    "cudnn": cuda.cudnn_sdp_enabled,
    "math": cuda.math_sdp_enabled,
}


@dataclass(frozen=True, kw_only=True)
class Wishes:
    nan_sample: int | None = None
    steep_sample: int | None = None
    """One whose loss is far above the others'."""
    room: int = SAMPLES
    """Samples that the memory of `short_rank` holds."""
    short_rank: int = 0
    too_much_for: str = "forward"
    """The pass that exhausts it."""
    batch_norm: bool = False
    width: int = 8
    """Width of the hidden layer."""
    unused: str = ""
    """`always`, `sometimes`: when some weights take no part in a pass."""
    sample_s: tuple[float, ...] = ()
    """Seconds of the forward pass of one sample on each rank: machines of unequal speed."""
    slower_after: int = 0
    """Forward passes after which `slow_rank` takes four times as long; 0: never."""
    slow_rank: int = 1
    validation_samples: int = 0
    """The first so many of the training samples."""
    drifts_after: int = 0
    """Forward passes after which the weights of `slow_rank` change by themselves; 0: never."""
    bucketed: bool = False
    stuck_write: int = 0
    """Number of the checkpoint that is written half and no further; 0: none."""


class Memory(torch.autograd.Function):
    """Fails as a GPU whose memory is exhausted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, room: int, too_much_for: str) -> Tensor:
        ctx.too_much = len(x) > room and too_much_for == "backward"
        if len(x) > room and too_much_for == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        if ctx.too_much:
            raise RuntimeError("CUDA error: out of memory")
        return grad, None, None


class Net(nn.Module):
    def __init__(self, wishes: Wishes, *, short: bool) -> None:
        super().__init__()
        self.memory = wishes.room if short else sys.maxsize, wishes.too_much_for
        self.norm = nn.BatchNorm1d(wishes.width) if wishes.batch_norm else nn.Identity()
        self.up, self.down = nn.Linear(3, wishes.width), nn.Linear(wishes.width, 1)
        self.spare = nn.Linear(3, 1) if wishes.unused else None
        self.unused = wishes.unused

    def forward(self, x: Tensor) -> Tensor:
        if self.unused == "sometimes" and self.spare and x[0, 0] > 0:
            x = x + 0 * self.spare(x)
        hidden = Memory.apply(torch.tanh(self.norm(self.up(x))), *self.memory)
        y: Tensor = self.down(hidden)
        return y.squeeze(1)


class Attached(dict[str, Path]):
    """No files, which are asked for between a checkpoint's state and its manifest."""

    def __init__(self, stuck_write: int) -> None:
        self._left = stuck_write

    def items(self) -> Any:
        self._left -= 1
        if self._left == 0:
            threading.Event().wait()
        return super().items()


class Observed(Workload):
    name = "observed"

    def __init__(self, options: TrainOptions, wishes: Wishes, place: RankInfo) -> None:
        everyone = np.arange(SAMPLES)
        self._x, (self._y,) = uniform(1, everyone, 3) - 0.5, uniform(2, everyone, 1).T
        self._weights = 1.0 + everyone % 3  # so that ranks with as many samples have different targets
        if wishes.nan_sample is not None:
            self._x[wishes.nan_sample] = np.nan
        if wishes.steep_sample is not None:
            self._y[wishes.steep_sample] = 1e4
        self._seen = options.run_dir / f"seen-{place.rank}.jsonl"
        self._seen.parent.mkdir(parents=True, exist_ok=True)
        self._sample_s = wishes.sample_s[place.rank] if wishes.sample_s else 0.0
        self._slower_after = wishes.slower_after if place.rank == wishes.slow_rank else 0
        self._drifts_after = wishes.drifts_after if place.rank == wishes.slow_rank else 0
        self._passes = 0
        self.model = Net(wishes, short=place.rank == wishes.short_rank)
        self.identity = {"workload": self.name}
        self.step_sizes = [(0, options.batches(place.world_size))]
        self._bucketed = wishes.bucketed
        self.train_samples = SAMPLES
        self.validation_samples = wishes.validation_samples
        self.attachments: dict[str, Path] = Attached(wishes.stuck_write)

    def batch(self, portion: BatchRequest) -> Batch:
        x, y, weights = (part[portion.indices] for part in (self._x, self._y, self._weights))
        return (
            torch.from_numpy(x).float(),
            torch.from_numpy(y).float(),
            torch.from_numpy(weights).float(),
            torch.from_numpy(np.array(portion.indices)),
            torch.from_numpy(np.array(portion.positions)),
        )

    def order(self, seed: int) -> Order:
        return Bucketed(np.arange(SAMPLES) % 5, seed, self.step_sizes) if self._bucketed else super().order(seed)

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y, weights, indices, positions = batch
        self._passes += 1
        if 0 < self._drifts_after == self._passes:
            with torch.no_grad():
                self.model.up.weight.mul_(1.05)
        slower = 4 if 0 < self._slower_after < self._passes else 1
        time.sleep(slower * self._sample_s * len(x))
        reported = {
            "indices": indices.tolist(),
            "positions": positions.tolist(),
            "kernels": [name for name, enabled in KERNELS.items() if enabled()],
            "autocast": str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "noise": float(torch.rand(())),
        }
        with self._seen.open("a") as file:
            file.write(json.dumps(reported) + "\n")
        return (weights * (model(x).float() - y) ** 2).sum()[None]

    def target_counts(self, split: str, indices: Indices) -> tuple[float, ...]:
        return (float(self._weights[indices].sum()),)


def seen(run_dir: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Read what this rank reported of each forward pass."""
    return [json.loads(line) for line in (run_dir / f"seen-{rank}.jsonl").read_text().splitlines()]


def state(run_dir: Path, step: int) -> dict[str, Any]:
    """Load the checkpoint of that step."""
    path = run_dir / "checkpoints" / f"step-{step:08d}" / "state.pt"
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def same(one: object, other: object) -> bool:
    """Bit by bit, through dictionaries and lists."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return one == other


def main(argv: Sequence[str]) -> int:
    data, wishes = (json.loads(word) for word in argv)
    options = TrainOptions(**{**data, "run_dir": Path(data["run_dir"])})
    place = RankInfo.from_environ(os.environ)
    return loop.train(lambda: Observed(options, Wishes(**wishes), place), options, place)


if __name__ == "__main__":
    sync_plan.SHORT_S = 0.0  # measure short runs, too
    sys.exit(main(sys.argv[1:]))
