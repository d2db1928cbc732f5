"""A run that is resumed within an epoch is the undisturbed one: bit by bit on one rank, whatever loads the data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import AS_ONE, MODEL, Call
from tests.trainer.observed import same, state
from trainer.cli import main
from trainer.engine.optimization.moment_formats import format_of
from trainer.engine.weights import CHECKED_EVERY

Words = dict[str, list[str]]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, picture_folder: Path) -> Words:
    """Options of each workload, with all the chance that it has."""
    root = tmp_path_factory.mktemp("prepared")
    text = ("--csv", "demo", "--rows", "120", "--model-name", "random:tiny", "--vocab-size", "500")
    assert main(["text", "prepare", *text, "--data-dir", str(root / "text")]) == 0
    pictures = ("--images", str(picture_folder), "--image-size", "16")
    assert main(["vision", "prepare", *pictures, "--data-dir", str(root / "vision")]) == 0
    # Enough that no chance leaves the part to validate without an anomaly: of 200 traces, one time in 20 did.
    assert main(["traces-lstm", "prepare", "--record-own", "1000", "--data-dir", str(root / "traces")]) == 0
    chance = ("--mixup", "0.4", "--randaugment", "2,9", "--erase", "0.3", "--no-channels-last")
    return {
        "gpt2": ["gpt2", "train", *MODEL, "--data-dir", str(data_dir)],
        "text": ["text", "train", "--max-length", "48", "--data-dir", str(root / "text")],
        "vision": ["vision", "train", "--image-size", "16", *chance, "--data-dir", str(root / "vision")],
        "traces-lstm": ["traces-lstm", "train", "--width", "16", "--layers", "2", "--data-dir", str(root / "traces")],
        "traces-gnn": ["traces-gnn", "train", "--width", "16", "--layers", "2", "--data-dir", str(root / "traces")],
    }


STEPS = (
    "--global-batch-size", "7", "--batch-size", "3", "--log-every", "1", "--eval-every", "0", "--no-compile",
    "--precision", "fp32", "--warmup-steps", "2", "--early-stopping", "none", "--keep-checkpoints", "9",
)  # fmt: skip
NOISE = {
    "gpt2": ("--dropout", "0.1"),
    "text": ("--dropout", "0.1"),
    "vision": ("--model", "resnet-small"),
    "traces-lstm": ("--dropout", "0.1"),
    "traces-gnn": ("--dropout", "0.1"),
}
"""Noise that differs from rank to rank, and so is only for one; batch norm's statistics, too, are each rank's own."""
ALIKE = {"text": ("--dropout", "0"), "vision": ("--model", "vit-mini"), "traces-lstm": ()}
"""gpt2: references/test_against_training_loop.py."""


@pytest.fixture(autouse=True)
def _events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")


@pytest.mark.parametrize("workload", list(NOISE))
def test_bit_by_bit_with_other_workers(workload: str, words: Words, call: Call, tmp_path: Path) -> None:
    train = [*words[workload], *STEPS, *NOISE[workload], "--max-steps", "6", "--checkpoint-every", "3"]
    whole = call(*train, "--num-workers", "0", "--run-dir", str(tmp_path / "whole"))
    assert whole.code == 0, whole.err
    assert whole.events("step")[2]["epoch"] % 1 > 0
    source = ("--resume", str(tmp_path / "whole" / "checkpoints" / "step-00000003"))
    rest = call(*train, *source, "--num-workers", "2", "--run-dir", str(tmp_path / "rest"))
    assert rest.events("resumed")[0]["step"] == 3
    assert rest.losses() == {step: loss for step, loss in whole.losses().items() if step > 3}
    found, expected = state(tmp_path / "rest", 6), state(tmp_path / "whole", 6)
    assert same(found, expected)
    assert not same(expected["model"], state(tmp_path / "whole", 3)["model"])


@pytest.mark.parametrize("workload", list(ALIKE))
def test_one_rank_then_two_then_one(
    workload: str, words: Words, call: Call, forked: Callable[..., Any], tmp_path: Path
) -> None:
    common = [*words[workload], *STEPS, *ALIKE[workload], "--num-workers", "0", "--schedule", "constant"]
    whole = call(*common, "--max-steps", "6", "--run-dir", str(tmp_path / "whole"))
    train = [*common, "--run-dir", str(tmp_path / "parts"), "--max-steps"]
    first = call(*train, "2")
    second = forked(2, *train, "4", *AS_ONE).result()
    third = call(*train, "6")
    assert (first.code, second.code, third.code) == (0, 0, 0), second.err
    assert [part.events("resumed")[0]["step"] for part in (second, third)] == [2, 4]
    assert first.losses() | second.losses() | third.losses() == pytest.approx(whole.losses(), rel=1e-6)


SMALLER = {
    "bf16": ("--optimizer-state", "bf16"),
    "int8": ("--optimizer-state", "int8"),
    "bf16, muon": ("--optimizer-state", "bf16", "--optimizer", "muon"),
}


@pytest.mark.parametrize("options", SMALLER.values(), ids=list(SMALLER))
def test_two_ranks_with_a_smaller_optimizer_state(
    options: tuple[str, ...], words: Words, forked: Callable[..., Any], tmp_path: Path
) -> None:
    """Ranks compare their weights in the last step; resumed, all is as in the undisturbed run, bit by bit."""
    run, last = tmp_path / "run", CHECKED_EVERY
    train = [*words["gpt2"], *STEPS, "--num-workers", "0", "--shares", "equal", "--sync", "int8", *options]
    train += ["--checkpoint-every", str(last // 2), "--max-steps", str(last), "--run-dir", str(run)]
    whole = forked(2, *train).result()
    assert whole.code == 0, whole.err
    expected = state(run, last)
    shutil.rmtree(run / "checkpoints" / f"step-{last:08d}")
    rest = forked(2, *train).result()
    assert rest.code == 0, rest.err
    assert rest.events("resumed")[0]["step"] == last // 2
    assert rest.losses() == {step: loss for step, loss in whole.losses().items() if step > last // 2}
    found = state(run, last)
    assert same(found["model"], expected["model"])
    assert same(found["optimizer"], expected["optimizer"])
    assert format_of(found["optimizer"]["state"]) in (*options, "fp32")
