"""Small choices whose loss no result would show at once: each is held to what it does."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.conftest import Call
from tests.trainer.forked import alone
from tests.trainer.observed import Observed, Wishes
from trainer import out_of_memory
from trainer.cli import main
from trainer.config import RankInfo, TrainOptions
from trainer.data.order import Indices, Order
from trainer.engine.dataloader import BatchSplit, MicroBatchLoader
from trainer.engine.hardware import device
from trainer.models import layers
from trainer.models.classification_loss import ClassificationLoss, soft_labels
from trainer.workloads.traces import TraceOptions

OPTIONS = {"global_batch_size": 12, "batch_size": 12, "max_steps": 3, "lr": 0.01, "warmup_steps": 0, "clip": 0.05}


def test_scaled_gradients_are_unscaled_before_they_are_clipped(
    observe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU older than Ampere, on a CPU: float16, and so a loss scale of 65536."""
    whole = observe(tmp_path / "whole", **OPTIONS)
    monkeypatch.setattr(device, "choose_dtype", lambda *_args, **_more: (torch.float16, "as that GPU would"))
    half = observe(tmp_path / "half", **OPTIONS)
    assert half.code == 0, half.err
    norms = [[event["grad_norm"] for event in run.events("step")] for run in (whole, half)]
    assert norms[1] == pytest.approx(norms[0], rel=0.02)
    assert half.losses() == pytest.approx(whole.losses(), rel=0.02)


class Counted:
    """Tells how many steps' samples were asked for."""

    def __init__(self, order: Order) -> None:
        self._order, self.samples, self.taken = order, order.samples, 0

    def take(self, position: int, count: int) -> Indices:
        self.taken += 1
        return self._order.take(position, count)


def test_each_worker_has_two_batches_ahead(tmp_path: Path) -> None:
    workload = Observed(TrainOptions(run_dir=tmp_path), Wishes(), RankInfo())
    counted = Counted(workload.order(1))
    workload.order = lambda _seed: counted  # type: ignore[method-assign]  # an order that counts
    split = BatchSplit(place=RankInfo(), seed=1, per_step=2, micro_batch=2)
    feed = MicroBatchLoader(workload, split, 0, workers=1)
    assert counted.taken == 2
    next(feed)
    assert counted.taken == 3
    feed.close()


def test_traces_are_shuffled_among_a_thousand() -> None:
    assert TraceOptions().shuffle_buffer_size == 1000


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_half_precise_scores_is_computed_in_float32(smoothing: float) -> None:
    scores = torch.randn(16, 5, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    labels = soft_labels(torch.arange(16) % 5, 5)
    loss = ClassificationLoss(smoothing=smoothing)
    assert torch.equal(loss(scores, labels), loss(scores.float(), labels))
    assert loss(scores, labels).dtype is torch.float32


@pytest.mark.parametrize(("options", "searches"), [((), True), (("--deterministic",), False)])
def test_cudnn_looks_for_the_fastest_convolutions_of_pictures(
    options: tuple[str, ...], searches: bool, tmp_path: Path, picture_folder: Path
) -> None:
    """The test has a process of its own: these switches are the process's."""
    words = [
        "vision", "train", "--images", str(picture_folder), "--image-size", "16", "--batch-size", "8",
        "--max-steps", "1", "--no-compile", "--run-dir", str(tmp_path), "--num-workers", "0", *options,
    ]  # fmt: skip
    assert alone(searches_after, words) is searches


def searches_after(words: list[str]) -> bool:
    assert main(words) == 0
    return torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("users", "set_to"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "mine"}, "mine"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "x"}, None),
    ],
)
def test_memory_of_gpus_grows_in_segments_unless_the_user_says_otherwise(
    users: dict[str, str], set_to: str | None, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    assert call("monitor", "--count", "1", "--interval", "0.01").code == 0
    assert os.environ.get("PYTORCH_ALLOC_CONF") == set_to


def test_a_gpu_has_for_a_process_what_its_share_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert out_of_memory.gpu_memory(torch.device("cpu")) == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8 << 30))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 0.25)
    assert out_of_memory.gpu_memory() == 2 << 30
    assert out_of_memory.gpu_memory(torch.device("cpu")) == 0


def test_checkpointing_of_texts_reaches_the_layers(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "Data"
    demo = ("--csv", "demo", "--rows", "40", "--model-name", "random:tiny", "--vocab-size", "300")
    assert call("text", "prepare", *demo, "--validation-share", "0.2", "--data-dir", str(data)).code == 0
    again: list[str] = []
    real = layers.checkpoint
    monkeypatch.setattr(layers, "checkpoint", lambda *given, **how: again.append("layer") or real(*given, **how))
    words = ("text", "train", "--data-dir", str(data), "--no-amp", "--no-compile", "--num-workers", "0",
             "--max-length", "32", "--max-steps", "1", "--eval-every", "0")  # fmt: skip
    for wish, used in (((), False), (("--gradient-checkpointing",), True)):
        ran = call(*words, "--run-dir", str(tmp_path / str(used)), *wish)
        assert ran.code == 0, ran.err
        assert bool(again) is used
