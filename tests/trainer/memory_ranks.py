"""`--memory auto` on ranks whose memory is a number: `python -m tests.trainer.memory_ranks OPTIONS LIMITS`, both as
JSON, prints what each rank has chosen. Needs are counted by the settings of the model and of the optimizer.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainer import option_layers
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.engine.autotune.memory import choose_memory
from trainer.engine.autotune.tuning import Bench
from trainer.engine.checkpoints.writer import Writer
from trainer.engine.dataloader import BatchSplit
from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware
from trainer.engine.process_group import join
from trainer.engine.reporting.events import Events
from trainer.engine.run import TrainingRun
from trainer.engine.stop_signal import StopSignal
from trainer.engine.workload import Workload
from trainer.errors import TooLittleMemoryError
from trainer.models.layers import Recompute, RecomputedBlock

CPU = torch.device("cpu")
BLOCK = {0: 4.0, "selective": 3.0, 1: 0.5}
CHUNK: dict[int | str, float] = {"auto": 8, 64: 4, 16: 1}
STATE = {"fp32": 8, "bf16": 4, "int8": 2}


class Gpu(Hardware):
    """A CPU that is asked for what fits."""

    @property
    def on_gpu(self) -> bool:
        return True


class Linear(RecomputedBlock):
    draws = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def compute(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Bounded(Workload):
    """Four blocks, and a loss in chunks; out of memory where a pass needs more than `limit`."""

    name = "bounded"
    loss_chunks = (64, 16)

    def __init__(self, limit: float, *, blocks: bool = True) -> None:
        torch.manual_seed(0)
        self.limit, self.chunk, self.kept = limit, "auto", 0.0
        self.model = nn.Sequential(*(Linear() if blocks else nn.Linear(4, 4) for _ in range(4)))
        self.loss_chunks = (64, 16) if blocks else ()
        self.identity = {"workload": self.name}
        self.train_samples = 64

    @property
    def recompute(self) -> list[Recompute]:
        return [block.recompute for block in self.model if isinstance(block, Linear)]

    def set_loss_chunk(self, tokens: int | Literal["auto"]) -> None:
        self.chunk = tokens  # type: ignore[assignment]  # a number, too

    def batch(self, portion: BatchRequest) -> Batch:
        return (torch.ones(len(portion), 4),)

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        needed = len(batch[0]) * sum(BLOCK[how] for how in self.recompute or [0]) + CHUNK[self.chunk] + self.kept
        if needed > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return model(batch[0]).square().sum()[None]


@dataclass(frozen=True, kw_only=True)
class BoundedRun(TrainingRun):
    """Counts the state of the optimizer that is built."""

    def optimizer(self) -> torch.optim.Optimizer:
        assert isinstance(self.workload, Bounded)
        self.workload.kept = 0.0 if self.options.optimizer_offload else STATE[self.options.optimizer_state]
        return super().optimizer()


def choose(workload: Bounded, options: TrainOptions, place: RankInfo, group: Group) -> dict[str, Any]:
    said = io.StringIO()
    hardware = Gpu(device=CPU, threads=1, dtype=torch.float32, onednn="")
    run = BoundedRun(
        workload=workload, options=options, place=place, hardware=hardware, group=group,
        events=Events(place, out=said, err=said), stop=StopSignal(), writer=Writer(), per_step=8 * place.world_size,
    )  # fmt: skip
    cut = BatchSplit(place=place, seed=1, per_step=run.per_step, micro_batch=options.batch_size)
    bench = Bench(workload, hardware, cut, 0, run.events)
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    chosen = choose_memory(run, bench)
    assert all(torch.equal(*pair) for pair in zip(before, workload.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in workload.model.parameters())
    return {
        "recompute": workload.recompute,
        "chunk": workload.chunk,
        "micro_batch": bench.cut.micro_batch,
        "state": chosen.options.optimizer_state,
        "offload": chosen.options.optimizer_offload,
        "said": said.getvalue(),
        "options": option_layers.summary(chosen.options),
    }


def main(argv: Sequence[str]) -> int:
    told, limits = (json.loads(word) for word in argv)
    place = RankInfo.from_environ(os.environ)
    options = TrainOptions(**{**told, "run_dir": Path(told["run_dir"]) / str(place.rank)})
    with join(place, CPU, "gloo") as group:
        try:
            found = choose(Bounded(limits[place.rank]), options, place, group)
        except TooLittleMemoryError as error:
            found = {"refused": str(error)}
        sys.stdout.write(f"chosen {json.dumps({'rank': place.rank, **found})}\n")
        sys.stdout.flush()
        group.barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
