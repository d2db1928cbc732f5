"""`--memory auto` on a real GPU that is held to the memory of a small card."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.engine.autotune.memory import choose_memory
from trainer.engine.autotune.tuning import Bench
from trainer.engine.checkpoints.writer import Writer
from trainer.engine.dataloader import BatchSplit
from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware
from trainer.engine.reporting.events import Events
from trainer.engine.run import TrainingRun
from trainer.engine.stop_signal import StopSignal
from trainer.engine.workload import Workload
from trainer.models.gpt2 import GPT2, Gpt2Shape
from trainer.workloads.gpt2 import PRESETS

pytestmark = pytest.mark.gpu
GIB = 1 << 30
VOCABULARY = 50257
SAMPLES_PER_STEP = 16


class Tokens(Workload):
    """The preset 124m at its length of 1024, on random tokens."""

    name = "tokens"
    loss_chunks = (1024, 256)

    def __init__(self) -> None:
        preset = PRESETS["124m"]
        shape = Gpt2Shape(
            layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=preset.seq_len, vocab_size=VOCABULARY
        )
        self.gpt2 = GPT2(shape).cuda()
        self.model = self.gpt2
        self.identity = {"workload": self.name}
        self.train_samples = 64

    def set_loss_chunk(self, tokens: int | Literal["auto"]) -> None:
        self.gpt2.set_loss_chunk(tokens)

    def batch(self, portion: BatchRequest) -> Batch:
        tokens = torch.randint(VOCABULARY, (len(portion), self.gpt2.shape.seq_len + 1))
        return tokens[:, :-1], tokens[:, 1:]

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(*batch).unsqueeze(0)


@pytest.fixture
def card(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many GiB of the card."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(request.param * GIB / torch.cuda.get_device_properties(0).total_memory)
    torch.cuda.reset_peak_memory_stats()
    yield request.param
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("card", [4, 8], indirect=True)
def test_gpt2_124m_trains_at_a_length_of_1024_in_the_memory_of_a_small_card(card: int, tmp_path: Path) -> None:
    place, said = RankInfo(), io.StringIO()
    device = torch.device("cuda", 0)
    options = TrainOptions(run_dir=tmp_path, memory="auto", global_batch_size=SAMPLES_PER_STEP, compile=False)
    run = TrainingRun(
        workload=Tokens(), options=options, place=place,
        hardware=Hardware(device=device, threads=1, dtype=torch.bfloat16, onednn=""),
        group=Group(place=place, backend="none", device=torch.device("cpu")),
        events=Events(place, out=said, err=said), stop=StopSignal(), writer=Writer(), per_step=SAMPLES_PER_STEP,
    )  # fmt: skip
    cut = BatchSplit(place=place, seed=1, per_step=SAMPLES_PER_STEP, micro_batch=options.batch_size)
    bench = Bench(run.workload, run.hardware, cut, 0, run.events)
    run = choose_memory(run, bench)
    assert f"{card:.1f} GiB of this GPU" in said.getvalue()

    optimizer, size = run.optimizer(), bench.cut.micro_batch
    for _ in range(3):
        for start in range(0, SAMPLES_PER_STEP, size):
            portion = range(start, min(start + size, SAMPLES_PER_STEP))
            tokens = torch.randint(VOCABULARY, (len(portion), 1025), device=device)
            with run.hardware.autocast():
                loss = run.workload.loss_sums(run.workload.model, (tokens[:, :-1], tokens[:, 1:])).sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert torch.isfinite(loss)
    assert torch.cuda.max_memory_allocated() <= card * GIB
    if card == 8:
        assert run.options.optimizer_state == "fp32", said.getvalue()
