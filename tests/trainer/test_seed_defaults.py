"""Promises of the original guides for a run without options: read from the run's own record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from torch import nn

from tests.trainer.observed import state
from trainer.cli import main, parse
from trainer.config import RankInfo, TrainOptions
from trainer.engine.group import Group
from trainer.engine.hardware.device import prepare_hardware
from trainer.engine.sync.ddp import Ddp, ddp_buckets
from trainer.limits import usable_threads


def saved(run_dir: Path) -> dict[str, Any]:
    options: dict[str, Any] = yaml.safe_load((run_dir / "options.yaml").read_text("utf-8"))
    return options


def test_a_text_training_watches_causa_and_warms_up_a_tenth_of_five_epochs(call, tmp_path: Path) -> None:
    demo = ("--csv", "demo", "--rows", "60", "--model-name", "random:tiny", "--vocab-size", "400")
    assert main(["text", "prepare", *demo, "--data-dir", str(tmp_path / "Data")]) == 0
    run = call("text", "--data-dir", str(tmp_path / "Data"), "--run-dir", str(tmp_path), "--max-length", "16",
               "--batch-size", "18", "--num-workers", "0", "--no-compile", "--no-amp")  # fmt: skip
    assert run.code == 0, run.err
    expected = {
        "early-stopping": "causa_f1", "best": "causa_f1", "patience": 3, "epochs": 5, "schedule": "linear",
        "warmup-steps": 1, "weight-decay": 0.01, "betas": "0.9,0.999", "lr": 5e-4, "on-spike": "off",
    }  # fmt: skip
    assert {name: saved(tmp_path)[name] for name in expected} == expected  # 3 steps an epoch, 15 in all


def test_class_weights_are_causas_and_texts_are_cut_at_128() -> None:
    from types import SimpleNamespace

    from trainer.workloads import text_options

    given = parse(["text"])
    heads = {"modo": 0.1, "causa": 0.6, "prioridad": 0.3}
    prepared: Any = SimpleNamespace(head_weights=heads, heads=heads, model_name="x", layers=2, longest=512)
    choice = text_options.choose(given, prepared)
    assert choice.class_weights == ("causa",)
    assert (choice.max_length, choice.bucketing, choice.freeze_layers) == (128, True, 0)


def test_a_vision_training_is_one_cycle_with_the_guides_adamw(call, picture_folder: Path, tmp_path: Path) -> None:
    run = call("vision", "--images", str(picture_folder), "--run-dir", str(tmp_path), "--max-steps", "1",
               "--image-size", "16", "--batch-size", "4", "--num-workers", "0", "--no-compile")  # fmt: skip
    assert run.code == 0, run.err
    expected = {
        "schedule": "onecycle", "betas": "0.9,0.999", "weight-decay": 1e-4, "clip": 1.0, "best": "accuracy",
        "eval-every": "epoch", "checkpoint-every": "epoch",
    }  # fmt: skip
    assert {name: saved(tmp_path)[name] for name in expected} == expected
    (group, *_) = state(tmp_path, 1)["optimizer"]["param_groups"]
    assert group["betas"] == (0.9, 0.999)


def test_other_names_of_an_option_mean_the_same() -> None:
    given = parse(
        ["gpt2", "--gradient-accumulation-steps", "3", "--learning-rate", "0.1", "--max-norm", "2", "--use-amp",
         "--use-compile", "--sample-at-end", "En", "--preprocessed-dir", "D", "--gradient-checkpointing"]
    )  # fmt: skip
    assert (given.grad_accum, given.lr, given.clip, given.amp, given.compile) == (3, 0.1, 2.0, True, True)
    assert (given.prompt, given.data_dir, given.gradient_checkpointing) == ("En", Path("D"), True)


def test_gradients_are_clipped_to_the_norm_asked_for(train, tmp_path: Path) -> None:
    """SGD's momentum after the first step is what the optimizer got."""
    norms = []
    for clip in ("0", "1e-3"):
        folder = tmp_path / clip
        run = train(folder, "--max-steps", "1", "--optimizer", "sgd", "--weight-decay", "0", "--clip", clip)
        assert run.code == 0, run.err
        momenta = [part["momentum_buffer"].flatten() for part in state(folder, 1)["optimizer"]["state"].values()]
        norms.append((float(torch.cat(momenta).norm()), run.events("step")[0]["grad_norm"]))
    (whole, reported), (clipped, reported_again) = norms
    assert whole == pytest.approx(reported, rel=1e-5)
    assert clipped == pytest.approx(1e-3, rel=1e-3)
    assert reported_again == pytest.approx(reported, rel=1e-5)  # told is what it was before


def test_ranks_of_a_node_share_its_threads() -> None:
    before = torch.get_num_threads()
    try:
        for ranks in (1, 2, 1000):
            hardware = prepare_hardware(RankInfo(local_world_size=ranks), TrainOptions(), environ={})
            assert hardware.threads == torch.get_num_threads() == max(1, usable_threads() // ranks)
        prepare_hardware(RankInfo(), TrainOptions(), environ={"OMP_NUM_THREADS": "1"})
        assert torch.get_num_threads() == max(1, usable_threads() // 1000)  # left to OpenMP
    finally:
        torch.set_num_threads(before)


def test_nothing_is_sent_before_the_last_part_of_a_step(tmp_path: Path) -> None:
    with sent_by_ddp(nn.Linear(3, 2), tmp_path) as (sync, sent):
        for number, last in enumerate((False, False, True)):
            with sync.gradients(last=last):
                sync.model(torch.ones(1, 3)).sum().backward()
            assert sent == ([8] if last else []), number


def test_ddps_buckets_are_those_of_the_forecast(tmp_path: Path) -> None:
    """28 MB of embedding and three layers of a megabyte; DDP lays its buckets out again after the first pass."""
    model = nn.Sequential(nn.Embedding(14_000, 512), *(nn.Linear(512, 512) for _ in range(3)))
    with sent_by_ddp(model, tmp_path) as (sync, sent):
        for _ in range(2):
            sent.clear()
            sync.model(torch.tensor([[1]])).sum().backward()
        assert sent == [sum(one.numel() for one in bucket) for bucket in ddp_buckets(model.parameters())]
        assert len(sent) > 1


@contextmanager
def sent_by_ddp(model: nn.Module, folder: Path) -> Iterator[tuple[Ddp, list[int]]]:
    """DDP of a rank that believes in another, and the values in each bucket that it sends."""
    sent: list[int] = []

    class Counting(Group):
        def sum_soon(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
            sent.append(tensor.numel())
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(tensor)
            return done

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        group = Counting(place=RankInfo(world_size=2), backend="gloo", device=torch.device("cpu"))
        yield Ddp(model, group, static_graph=False), sent
    finally:
        dist.destroy_process_group()
