"""Check of the trainer's words by the controller before it starts anything."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEEDS_TORCH
from trainer.check import Answer, answer
from trainer.data.prepared_folder import IMAGES, KINDS, TOKENS, Kind
from trainer.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]


def ask(*words: str, data: Path | None = None, **environment: str) -> Answer:
    return answer(
        {"words": words, "data": str(data) if data else None, "environment": environment, "prog": "orch launch --"}
    )


def held(folder: Path, kind: Kind, **manifest: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"kind": kind.name, "format": kind.format, **manifest}))
    return folder


def tokens(folder: Path, train: int, validation: int) -> Path:
    splits = {"train": {"shards": [{"tokens": train}]}, "validation": {"shards": [{"tokens": validation}]}}
    return held(folder, TOKENS, splits=splits, vocab_size=16384)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("gtp2", "no workload 'gtp2' (did you mean gpt2?); there are gpt2, vision,"),
        ("gpt2 smaple", "(did you mean sample?)"),
        ("gpt2 --epoch 3", "unrecognized arguments: --epoch 3 (did you mean --epochs?)"),
        ("gpt2 --preset 124", "(did you mean 124m?)"),
        ("gpt2 --lr fast", "argument --lr/--learning-rate: invalid float value: 'fast'"),
        ("gpt2 --epochs 0", "--epochs 0: expected at least 1"),
        ("gpt2 --dropout 1", "--dropout 1: expected at least 0 and less than 1"),
        ("gpt2 --width 100 --heads 3", "--width 100 does not divide into --heads 3"),
        ("vision --label-smoothing 2", "--label-smoothing 2: expected 0 to 1"),
        ("traces-gnn --pos-weight 0", "--pos-weight 0: expected more than 0"),
        ("custom --module mine.py:build", "--module mine.py:build: there is no "),
        ("custom --module mine", "expected --module my_pkg:build"),
        ("gpt2 sample", "the following arguments are required: --checkpoint, --prompt"),
    ],
)
def test_what_the_trainer_would_refuse(words: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = ask(*words.split())
    assert part in found.refused
    assert found.code == 2


def test_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    assert ask("custom", "--module", "mine.py:build", "--set", "lr=1e-3") == Answer()
    assert ask("gpt2", "sample", "--checkpoint", "/workspace/runs/x", "--prompt", "El gato") == Answer()
    assert ask("test-ddp") == Answer()
    assert ask("vision", "--images", "/workspace/pictures") == Answer()


def test_options_that_a_file_or_a_variable_may_complete_are_left_to_the_nodes() -> None:
    apart = ("gpt2", "--sync-delay", "30")
    assert "--sync-delay 30" in ask(*apart).refused
    assert not ask(*apart, "--config", "mine.yaml").refused
    assert not ask(*apart, TRAINER_SYNC_EVERY="60").refused


def test_help_is_the_workloads_own() -> None:
    shown = ask("gpt2", "--help").help
    assert shown.startswith("usage: orch launch -- gpt2 train")
    assert "--preset" in shown


def test_data_that_is_missing_is_named_by_the_line_that_makes_it() -> None:
    made = {name: ask(name).needs for name in WORKLOADS if name != "custom"}
    assert made["gpt2"] == "orch prepare -- gpt2 --text spanish"
    assert made["traces-gnn"] == made["traces-lstm"] == "orch prepare -- traces-lstm --input ./traces.jsonl"
    assert {line.split()[3] for line in made.values()} == {kind.workload for kind in KINDS}
    assert ask("gpt2", "--data-dir", "/workspace/other").needs == ""


def test_packages_that_not_every_image_has_are_named() -> None:
    assert ask("traces-gnn", "--data-dir", "/workspace/other").packages == ("torch-geometric",)
    assert ask("traces-lstm").packages == ()


def test_data_of_another_workload_is_refused_with_a_folder_of_its_own(tmp_path: Path) -> None:
    found = ask("gpt2", data=held(tmp_path / "Data", IMAGES))
    assert found.refused == f"{tmp_path}/Data holds images; gpt2 reads tokens"
    assert found.code == 3
    assert found.hint.startswith(f"orch prepare --data {tmp_path}/Data-gpt2 -- gpt2 --text spanish ")


def test_a_sample_longer_than_the_text(tmp_path: Path) -> None:
    data = tokens(tmp_path / "Data", train=5000, validation=101)
    assert replace(ask("gpt2", "--seq-len", "100", data=data), sizes=None) == Answer()
    assert "the validation split has fewer than --seq-len 101 + 1 tokens: give --seq-len 100 or less" in (
        ask("gpt2", "--seq-len", "101", data=data).refused
    )
    assert "--seq-len 1024" in ask("gpt2", data=data).refused  # the preset's
    assert replace(ask("gpt2", "--seq-len", "4000", "--eval-every", "0", data=data), sizes=None) == Answer()


def test_heads_are_compared_with_what_was_prepared(tmp_path: Path) -> None:
    from trainer.data.prepared_folder import LABELLED_TEXT

    data = held(
        tmp_path / "Data", LABELLED_TEXT, model_name="random:tiny", files={},
        shape={"layers": 2, "positions": 512, "first_position": 0},
        heads=[{"name": "tema", "weight": 1.0, "classes": ["a", "b"]}],
    )  # fmt: skip
    assert ask("text", data=data) == Answer()
    assert "--heads modo: prepared are tema" in ask("text", "--heads", "modo", data=data).refused
    assert "--max-length 600" in ask("text", "--max-length", "600", data=data).refused


def test_the_controller_needs_no_package_for_it() -> None:
    """A Python without site-packages has neither torch nor numpy nor PyYAML: every workload declares its options."""
    for name in WORKLOADS:
        asked = {"words": [name, "--help"], "data": None, "environment": {}, "prog": "orch launch --"}
        ran = subprocess.run(
            [sys.executable, "-S", "-m", "trainer.check"], input=json.dumps(asked), cwd=ROOT, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "--epochs" in json.loads(ran.stdout)["help"]


@NEEDS_TORCH
def test_the_sizes_of_a_gpt2_are_known_without_building_it(tmp_path: Path) -> None:
    from trainer.models.gpt2 import GPT2, Gpt2Shape

    data = tokens(tmp_path / "Data", train=5000, validation=5000)
    sizes = ask("gpt2", "--preset", "mini", "--optimizer", "muon", "--micro-batch-size", "3", data=data).sizes
    assert sizes is not None
    model = GPT2(Gpt2Shape(layers=4, heads=4, width=256, seq_len=128, vocab_size=16384))
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())
    hidden = sum(
        parameter.numel() for group in model.parameter_groups(0.1) if group.get("muon") for parameter in group["params"]
    )
    assert sizes.optimizer_values == 2 * sizes.parameters - hidden
    assert (sizes.micro_batch, sizes.passes, sizes.fixed) == (3, 3, ("micro_batch_size",))


@NEEDS_TORCH
def test_a_chunk_of_the_loss_is_as_long_as_the_model_makes_it() -> None:
    from trainer.models.token_loss import CHUNK
    from trainer.workloads.gpt2 import CPU_LOSS_CHUNK

    assert CPU_LOSS_CHUNK == CHUNK


def test_sizes_are_not_guessed(tmp_path: Path) -> None:
    data = tokens(tmp_path / "Data", train=5000, validation=5000)
    assert ask("gpt2").sizes is None
    assert ask("gpt2", "--init-from", "gpt2", data=data).sizes is None
    assert ask("gpt2", "--config", "mine.yaml", data=data).sizes is None
