"""The vision workload whole: the same pictures however the stream is cut, and from a folder to a named class."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.conftest import AS_ONE, Call, Ranks
from trainer.cli import parse
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import BatchRequest
from trainer.data.order import Shuffled, share
from trainer.engine.dataloader import BatchSplit, MicroBatchLoader
from trainer.errors import OptionError
from trainer.workloads.vision import PRESETS, choices
from trainer.workloads.vision_options import VisionOptions
from trainer.workloads.vision_training import Vision, open_pictures

MODEL = ("--model", "vit-mini", "--image-size", "16")


@pytest.fixture(scope="module")
def data(picture_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainer.cli import main

    folder = tmp_path_factory.mktemp("prepared")
    assert (
        main(["vision", "prepare", "--images", str(picture_folder), "--data-dir", str(folder), "--image-size", "16"])
        == 0
    )
    return folder  # fmt: skip


Build = Callable[..., Vision]


@pytest.fixture
def vision(data: Path, tmp_path: Path) -> Build:
    def build(**chosen: Any) -> Vision:
        options = TrainOptions(data_dir=data, run_dir=tmp_path / "run", seed=5)
        reported = VisionOptions(**{"model": "vit-mini", "image_size": 16, **chosen})
        return Vision(options, reported, open_pictures(options, reported, None, RankInfo()), RankInfo())

    return build


CHANCE: dict[str, Any] = {"mixup": 0.4, "randaugment": (2, 12.0), "erase": 0.3, "crop_padding": 2}


def seen(workload: Vision, cuts: list[tuple[int, int]]) -> torch.Tensor:
    """Return what the model learns from in a stretch of the stream that is cut like that."""
    order = Shuffled(workload.train_samples, 5)
    parts = []
    for start, end in cuts:
        portion = BatchRequest(split="train", indices=order.take(start, end - start), positions=np.arange(start, end))
        pictures, target = workload.seen(workload.batch(portion))
        parts.append(torch.cat([pictures.flatten(1), target], 1))
    return torch.cat(parts)


@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_pictures_do_not_depend_on_how_the_stream_is_cut(size: int, vision: Build) -> None:
    """40 positions: over the end of an epoch of 33, which leaves one sample without a partner."""
    workload = vision(**CHANCE)
    whole = seen(workload, [(0, 40)])
    assert torch.allclose(seen(workload, [(at, min(at + size, 40)) for at in range(0, 40, size)]), whole, atol=2e-3)


def test_the_second_epoch_shows_other_pictures_of_the_same_samples(vision: Build) -> None:
    workload = vision()
    count = workload.train_samples
    order = Shuffled(count, 5)
    first, second = seen(workload, [(0, count)]), seen(workload, [(count, 2 * count)])
    first, second = first[order.window(0, 0).argsort()], second[order.window(1, 0).argsort()]
    assert torch.equal(first[:, -3:], second[:, -3:])  # labels
    assert not torch.equal(first[:, :-3], second[:, :-3])


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_see_the_same(workers: int, vision: Build) -> None:
    workload = vision(**CHANCE)
    whole = seen(workload, [(0, 24)])
    got: list[list[torch.Tensor]] = []
    for rank in range(3):
        cut = BatchSplit(place=RankInfo(rank=rank, world_size=3), seed=5, per_step=12, micro_batch=3)
        feed = MicroBatchLoader(workload, cut, 0, workers=workers)
        got.append([torch.cat([p.flatten(1), t], 1) for p, t in (workload.seen(next(feed)) for _ in range(4))])
        feed.close()
    in_order = [got[rank][2 * step + part] for step in range(2) for rank in range(3) for part in range(2)]
    assert torch.allclose(torch.cat(in_order), whole, atol=2e-3)
    assert [len(share(np.arange(12), rank, 3)) for rank in range(3)] == [4, 4, 4]


def test_mixup_mixes_pairs_and_their_labels(vision: Build) -> None:
    plain, mixed = seen(vision(), [(0, 12)]), seen(vision(mixup=1.0), [(0, 12)])
    for one in range(0, 12, 2):
        pair = plain[one : one + 2]
        weight = torch.linalg.lstsq(pair.T, mixed[one : one + 2].T).solution
        assert weight.sum(0) == pytest.approx(1.0, abs=1e-2)
        assert torch.allclose(weight.T @ pair, mixed[one : one + 2], atol=0.1)
    assert mixed[:, -3:].sum(1) == pytest.approx(1.0)
    assert (mixed[:, -3:].amax(1) < 0.99).any()


def test_a_float_is_a_float_under_autocast(vision: Build) -> None:
    workload = vision(**CHANCE)
    plain = seen(workload, [(0, 8)])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(seen(workload, [(0, 8)]), plain)


def loss(workload: Vision) -> float:
    torch.manual_seed(1)
    model = workload.model.train()
    order = Shuffled(workload.train_samples, 5)
    batch = workload.batch(BatchRequest(split="train", indices=order.take(0, 8), positions=np.arange(8)))
    return float(workload.loss_sums(model, batch).detach())


def test_options_of_the_loss_reach_it(vision: Build) -> None:
    torch.manual_seed(1)
    weights = vision().model.state_dict()

    def with_options(**chosen: Any) -> float:
        workload = vision(**chosen)
        workload.model.load_state_dict(weights)
        return loss(workload)

    plain = with_options()
    assert with_options(focal_loss=2.0) < 0.6 * plain
    assert with_options(label_smoothing=0.3) != plain
    assert with_options(class_weights="balanced") == pytest.approx(plain)  # as many of each class
    assert with_options(channels_last=False) == pytest.approx(plain, rel=1e-4)
    assert with_options(gradient_checkpointing=True) == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("channels_last", [True, False])
def test_pictures_are_laid_out_as_asked(channels_last: bool, vision: Build) -> None:
    workload = vision(model="resnet-small", channels_last=channels_last)
    batch = workload.batch(BatchRequest(split="train", indices=np.arange(4), positions=np.arange(4)))
    pictures, _ = workload.seen(batch)
    assert pictures.is_contiguous(memory_format=torch.channels_last) is channels_last
    convolution = next(p for p in workload.model.parameters() if p.dim() == 4 and p.shape[1] > 1)
    assert convolution.is_contiguous(memory_format=torch.channels_last) is channels_last


# ── The command line ──────────────────────────────────────────────────────────────────────────────


def reported(*words: str) -> tuple[argparse.Namespace, VisionOptions]:
    given = parse(["vision", *words])
    return given, choices(given)


@pytest.mark.parametrize("model", ["resnet18", "vit-mini"])
def test_operations_are_three_times_those_of_a_forward_pass(model: str, vision: Build) -> None:
    workload, counted = vision(model=model), 0
    before = {name: value.clone() for name, value in workload.model.state_dict().items()}
    found = workload.flops_per_unit()
    assert workload.model.training
    assert all(torch.equal(value, before[name]) for name, value in workload.model.state_dict().items())

    def count(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal counted
        if isinstance(module, torch.nn.Conv2d):
            counted += 2 * output.numel() * module.in_channels * module.kernel_size[0] * module.kernel_size[1]
        else:
            counted += 2 * output.numel() * inputs[0].shape[-1]

    for module in workload.model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(count)
    workload.model.eval()(torch.zeros(1, *workload._shape))
    attention = 0.0 if model == "resnet18" else 0.05  # has no module of its own
    assert found == pytest.approx(3 * counted, rel=max(attention, 1e-9))


def test_every_option_of_the_seed_exists() -> None:
    given, chosen = reported(
        *[
            "--no-amp",
            "--no-compile",
            "--no-channels-last",
            "--use-gradient-checkpointing",
            "--grad-accum",
            "2",
            "--focal-loss",
        ],
        *["--label-smoothing", "0.1", "--num-workers", "4", "--batch-size", "16", "--epochs", "50"],
    )
    assert (given.amp, given.compile, given.grad_accum, given.num_workers) == (False, False, 2, 4)
    assert (given.batch_size, given.epochs) == (16, 50)
    assert (chosen.channels_last, chosen.gradient_checkpointing) == (False, True)
    assert (chosen.focal_loss, chosen.label_smoothing) == (2.0, 0.1)
    given, chosen = reported("--use-amp", "--use-compile", "--focal-loss", "1.5", "--randaugment", "--no-cache")
    assert (given.amp, given.compile, chosen.focal_loss) == (True, True, 1.5)
    assert (chosen.randaugment, chosen.cache_mib) == ((2, 9.0), 0)


def test_presets_can_be_changed() -> None:
    assert reported("--preset", "small")[1] == PRESETS["small"].options
    chosen = reported("--preset", "small", "--randaugment", "off", "--mixup", "0", "--model", "vit-tiny")[1]
    assert (chosen.randaugment, chosen.mixup, chosen.model, chosen.label_smoothing) == (None, 0.0, "vit-tiny", 0.1)


def test_all_wrong_values_are_reported_at_once() -> None:
    words = ["--label-smoothing", "2", "--mixup", "-1", "--randaugment", "2,31", "--image-size", "4"]
    with pytest.raises(OptionError) as caught:
        reported(*words)
    assert all(word in str(caught.value) for word in words if word.startswith("--"))


def test_from_a_folder_to_a_named_class(call: Call, data: Path, tmp_path: Path, picture_folder: Path) -> None:
    train = ["vision", *MODEL, "--data-dir", str(data), "--run-dir", str(tmp_path), "--epochs", "25", "--lr", "0.002"]
    train += [
        "--batch-size",
        "11",
        "--eval-every",
        "0",
        "--checkpoint-every",
        "0",
        "--no-compile",
        "--num-workers",
        "0",
    ]
    trained = call(*train, "--no-flip")
    assert trained.code == 0, trained.err

    judged = call(
        "vision", "evaluate", "--checkpoint", str(tmp_path), "--data-dir", str(data), "--out", str(tmp_path / "o")
    )
    assert judged.code == 0, judged.err
    quality = json.loads((tmp_path / "o" / "per_class.json").read_text())
    assert quality["accuracy"] == 1.0
    assert "standing" in judged.out

    (tmp_path / "words.png").write_text("no picture")
    where = ("--images", str(picture_folder / "standing"), "--images", str(tmp_path / "words.png"))
    named = call("vision", "predict", "--checkpoint", str(tmp_path), *where, "--top", "2", "--json")
    assert named.code == 3
    assert "words.png" in named.err
    lines = [json.loads(line) for line in named.out.splitlines() if line.startswith("{")]
    assert len(lines) == 12
    assert sum(next(iter(line["classes"])) == "standing" for line in lines) >= 11
    table = tmp_path / "named.csv"
    assert call("vision", "predict", "--checkpoint", str(tmp_path), *where[:2], "--out", str(table)).code == 0
    rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert list(rows[0]) == ["image", "class", "probability"]
    assert len({row["image"] for row in rows}) == 12


def test_training_straight_from_the_folder(call: Call, tmp_path: Path, picture_folder: Path) -> None:
    train = ["vision", *MODEL, "--images", str(picture_folder), "--run-dir", str(tmp_path), "--max-steps", "3"]
    train += ["--batch-size", "8", "--no-compile", "--num-workers", "0", "--eval-every", "0", "--cache-mib", "1"]
    done = call(*train)
    assert done.code == 0, done.err
    assert "33 images, 33 of them kept in memory" in done.out
    about = json.loads((tmp_path / "classes.json").read_text())
    assert about["frame"] == {"stored": 18, "crop": 16, "channels": 3}
    assert call(*train[:-2], "--no-cache", "--max-steps", "1", "--from-scratch").code == 0


def test_two_ranks_train_as_one(
    forked: Callable[..., Ranks], call: Call, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model does not mix the samples of a batch; batch norms see each rank's share alone."""
    monkeypatch.setenv("ORCH_EVENTS", "1")
    train = ["vision", *MODEL, "--data-dir", str(data), "--max-steps", "5", "--global-batch-size", "10", "--no-compile"]
    train += ["--mixup", "0.4", "--randaugment", "2,9", "--log-every", "1", "--eval-every", "0", "--num-workers", "0"]
    train += ["--lr", "0.001", "--no-amp"]
    alone = call(*train, "--batch-size", "10", "--run-dir", str(tmp_path / "one"))
    assert alone.code == 0, alone.err
    both = forked(2, *train, "--batch-size", "5", *AS_ONE, "--run-dir", str(tmp_path / "two")).result()
    assert both.code == 0, both.err
    assert both.losses().keys() == alone.losses().keys() == {1, 2, 3, 4, 5}
    for step, value in alone.losses().items():
        assert both.losses()[step] == pytest.approx(value, abs=1e-4)
