"""Memory of a real GPU that runs out: held to a small part of it, so that it does so soon."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.engine.autotune.measure import Echo
from trainer.engine.autotune.tuning import Bench
from trainer.engine.dataloader import BatchSplit
from trainer.engine.hardware.device import Hardware
from trainer.engine.optimization.optimizer import build_optimizer
from trainer.engine.reporting.events import Events
from trainer.engine.sync import methods
from trainer.engine.workload import Workload

pytestmark = pytest.mark.gpu
GIB = 1 << 30


class Layers(nn.Module):
    """Weights of 64 MiB, and 64 MiB of activations a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Rows(Workload):
    name = "rows"

    def __init__(self) -> None:
        self.model = Layers().cuda()
        self.identity = {"workload": self.name}
        self.train_samples = 256

    def batch(self, portion: BatchRequest) -> Batch:
        return (torch.ones(len(portion), 1024, 2048),)

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).square().mean((1, 2)).sum()[None]


@pytest.fixture
def small() -> Iterator[None]:
    """2 GiB of the card."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2 * GIB / torch.cuda.get_device_properties(0).total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("sync", ["int8", "diloco"])
@pytest.mark.usefixtures("small")
def test_the_micro_batch_that_fits_leaves_room_for_the_optimizer_and_the_exchange(sync: str, tmp_path: Path) -> None:
    place = RankInfo(rank=0, world_size=2)
    options = TrainOptions(run_dir=tmp_path, micro_batch_size="auto")
    workload = Rows()
    optimizer = build_optimizer(workload.model, None, options, torch.float32)
    hardware = Hardware(device=torch.device("cuda", 0), threads=1, dtype=torch.float32, onednn="")
    cut = BatchSplit(place=place, seed=1, per_step=256, micro_batch=8)
    events = Events(place, out=io.StringIO(), err=io.StringIO())
    bench = Bench(workload, hardware, cut, events)
    bench.choose_micro_batch(options, optimizer, methods.copies_held(sync))
    size = bench.cut.micro_batch
    assert 1 <= size < 128

    group = Echo(place=place, backend="none", device=torch.device("cuda", 0))
    context = methods.SyncContext(model=workload.model, optimizer=optimizer, options=options, group=group)
    held = methods.build(sync, context, 0, static_graph=False)
    for _ in range(3):
        for last in (False, True):
            with held.gradients(last=last):
                workload.loss_sums(held.model, (torch.ones(size, 1024, 2048, device="cuda"),)).sum().backward()
        held.finish()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    held.close()


@pytest.mark.usefixtures("small")
def test_what_is_measured_before_the_first_step_is_halved_until_it_fits(tmp_path: Path) -> None:
    messages = io.StringIO()
    hardware = Hardware(device=torch.device("cuda", 0), threads=1, dtype=torch.float32, onednn="")
    cut = BatchSplit(place=RankInfo(), seed=1, per_step=128, micro_batch=128)
    bench = Bench(Rows(), hardware, cut, Events(RankInfo(), out=messages, err=messages))
    assert bench.sample_s(lambda: None, 0.2) > 0
    assert bench.cut.micro_batch < 128
    assert "out of memory with micro-batches of 128 before the first step: continuing with 64" in messages.getvalue()
