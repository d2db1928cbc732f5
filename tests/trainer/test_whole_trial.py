"""The automatic micro-batch of a GPU: a trial holds and does all that a real step does."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.live_bytes import LiveBytes
from tests.trainer.observed import Observed, Wishes
from trainer.config import SYNCS, RankInfo, TrainOptions
from trainer.engine.autotune.measure import Echo
from trainer.engine.autotune.tuning import Bench
from trainer.engine.dataloader import BatchSplit
from trainer.engine.hardware.device import Hardware
from trainer.engine.reporting.events import Events
from trainer.engine.sync import methods

CPU = torch.device("cpu")
TWO = RankInfo(rank=1, world_size=2)


class Gpu(Hardware):
    """A CPU that is asked for what fits."""

    @property
    def on_gpu(self) -> bool:
        return True


class Watched(torch.optim.AdamW):
    """Runs out of memory after a pass of more than `room` samples."""

    room, last = 4, 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without a closure
        super().step()
        if self.last > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Sizes(Observed):
    """Tells the optimizer how many samples a pass had."""

    optimizer: Watched

    def loss_sums(self, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self.optimizer.last = len(batch[0])
        return super().loss_sums(model, batch)


def bench(tmp_path: Path) -> tuple[Bench, Sizes, TrainOptions]:
    options = TrainOptions(run_dir=tmp_path, micro_batch_size="auto", lr=0.1)
    workload = Sizes(options, Wishes(), TWO)
    workload.optimizer = Watched(workload.model.parameters(), lr=0.1, weight_decay=0.5)
    hardware = Gpu(device=CPU, threads=1, dtype=torch.float32, onednn="")
    cut = BatchSplit(place=TWO, seed=1, per_step=16, micro_batch=8)
    events = Events(TWO, out=io.StringIO(), err=io.StringIO())
    return Bench(workload, hardware, cut, events), workload, options


@pytest.mark.parametrize("copies", [0, 3])
def test_a_micro_batch_fits_with_the_optimizers_step_and_leaves_no_trace(copies: int, tmp_path: Path) -> None:
    tried, workload, options = bench(tmp_path)
    optimizer, model = workload.optimizer, workload.model
    before = [parameter.detach().clone() for parameter in model.parameters()]
    tried.choose_micro_batch(options, optimizer, copies)
    assert tried.cut.micro_batch == 4
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in SYNCS if name != "topk"])
def test_a_trial_holds_at_least_what_the_exchange_will_take(name: str, tmp_path: Path) -> None:
    """Counted for a model of four matrices: tensors that a method keeps, beside those of an exchange that is under way
    at the moment when each codec has encoded."""
    _, workload, options = bench(tmp_path)
    options = replace(options, sync=name)
    model = workload.model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))
    weights = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = Echo(place=TWO, backend="none", device=CPU)
    context = methods.SyncContext(model=model, optimizer=optimizer, options=options, group=group)
    if name == "fp32":  # DDP, whose buckets are as large as the gradients
        assert methods.copies_held(name) == 1
        return
    with LiveBytes() as live:
        sync = methods.build(name, context, 0, static_graph=False)
        for _ in range(2):
            with sync.gradients(last=True):
                sync.model(torch.ones(2, 128)).sum().backward()
            sync.finish()
        sync.close()
    activations = 64 << 10
    gradients = 4 * weights
    assert live.peak - gradients - activations <= 4 * weights * methods.copies_held(name)


def test_graphs_are_counted_as_traces_and_not_as_calls() -> None:
    from trainer.workloads.traces_gnn import GnnTraces
    from trainer.workloads.traces_lstm import LstmTraces

    calls, labels = torch.zeros(90, dtype=torch.int64), torch.zeros(3)
    graphs = (calls, torch.zeros(90, 2), torch.zeros(2, 87), calls, labels)
    sequences = (torch.zeros(3, 40), torch.zeros(3, 40, 2), torch.zeros(3), labels)
    assert GnnTraces.count_samples(object.__new__(GnnTraces), graphs) == 3
    assert LstmTraces.count_samples(object.__new__(LstmTraces), sequences) == 3


def test_speed_is_per_sample_of_the_workload_whatever_a_batch_looks_like(tmp_path: Path) -> None:
    """A batch whose first tensor has ten rows for each sample, as a GNN's calls of a trace."""

    class Rows(Observed):
        def batch(self, portion):  # type: ignore[no-untyped-def]  # as Observed's
            x, *rest = super().batch(portion)
            return (x.repeat_interleave(10, dim=0), *rest)

        def loss_sums(self, model, batch):  # type: ignore[no-untyped-def]  # as Observed's
            return super().loss_sums(model, (batch[0][::10], *batch[1:]))

        def count_samples(self, batch) -> int:  # type: ignore[no-untyped-def]  # as Observed's
            return len(batch[1])

    options = TrainOptions(run_dir=tmp_path)
    hardware = Hardware(device=CPU, threads=1, dtype=torch.float32, onednn="")
    cut = BatchSplit(place=RankInfo(), seed=1, per_step=4, micro_batch=4)
    events = Events(RankInfo(), out=io.StringIO(), err=io.StringIO())
    measured = Bench(Rows(options, Wishes(sample_s=(0.01,)), RankInfo()), hardware, cut, events)
    assert measured.sample_s(lambda: None, 0.1) >= 0.01  # each sleeps that long; a row would be a tenth of it
