"""A run tells its options with where they come from, and keeps them as a file for --config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from trainer import option_layers
from trainer.cli import parse
from trainer.config import RankInfo, TrainOptions
from trainer.option_layers import train_options
from trainer.workloads import WORKLOADS

COMMON = ("--epochs", "3", "--lr", "0.01", "--betas", "0.8,0.9", "--no-amp", "--compile", "auto", "--no-fused",
          "--eval-every", "epoch", "--micro-batch-size", "auto", "--early-stopping", "none")  # fmt: skip
OWN = {
    "gpt2": ("--layers", "2", "--init-from", "gpt2", "--no-use-gradient-checkpointing", "--loss-chunk", "auto"),
    "vision": ("--randaugment", "1,4", "--focal-loss", "--no-cache", "--no-channels-last", "--images", "in a folder"),
    "text": ("--heads", "modo:0.5,causa:0.5", "--class-weights", "none", "--no-bucketing", "--cache-dir", "x: y # z"),
    "traces-lstm": ("--pos-weight", "auto", "--max-length", "9"),
    "traces-gnn": ("--pos-weight", "2.5", "--convolution", "sage"),
    "custom": ("--module", "a.py:build", "--set", "width=3", "--set", "name=á b"),
}
CLEAN: dict[str, str] = {}


def options_of(argv: tuple[str, ...], environ: Mapping[str, str], run_dir: Path) -> TrainOptions:
    given = parse([*argv, "--run-dir", str(run_dir)], environ)
    return train_options(given, {"weight_decay": 0.25}, RankInfo())


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_saved_options_give_the_same_run_again(workload: str, tmp_path: Path) -> None:
    argv = (workload, *COMMON, *OWN[workload])
    option_layers.keep(options_of(argv, CLEAN, tmp_path / "run"))
    again = parse([workload, "--config", str(tmp_path / "run" / "options.yaml")], CLEAN)
    for name, value in vars(parse(argv, CLEAN)).items():
        if name not in ("origins", "config", "run_dir") and value is not None:
            assert getattr(again, name) == value, name


def test_each_value_stands_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("seed: 7\nclip: 2\n", "utf-8")
    argv = ("gpt2", "--config", str(tmp_path / "mine.yaml"), "--clip", "3")
    options = options_of(argv, {"TRAINER_GRAD_ACCUM": "2"}, tmp_path)
    saved = option_layers.as_yaml(options)
    lines = dict(line.split("  # ") for line in saved.splitlines() if "  # " in line)
    assert lines["clip: 3.0"] == "command line"
    assert lines["grad-accum: 2"] == "TRAINER_GRAD_ACCUM"
    assert lines["seed: 7"] == f"{tmp_path}/mine.yaml:1"
    assert lines["weight-decay: 0.25"] == "the workload's default"
    assert lines["spike-factor: 3.0"] == "default"
    assert "run-dir" not in yaml.safe_load(saved)
    assert option_layers.summary(options) == (
        f"options: clip 3.0, grad-accum 2 (TRAINER_GRAD_ACCUM), seed 7 ({tmp_path}/mine.yaml:1);"
        f" all of them in {tmp_path / 'options.yaml'}"
    )


def test_a_run_without_options_says_so(tmp_path: Path) -> None:
    assert option_layers.summary(options_of(("gpt2",), CLEAN, tmp_path)).startswith(
        "options: none given; all of them in "
    )
