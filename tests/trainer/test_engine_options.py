"""Effects of the engine's options: each does what its help says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.cli import parse
from trainer.errors import ConfigurationError

SHORT = ("--max-steps", "4", "--batch-size", "4", "--eval-every", "0", "--checkpoint-every", "0")


def test_one_precedence_flags_environment_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("lr: 0.1\nbatch_size: 3\ngrad-accum: 5\namp: false\nbetas: 0.5,0.6\n")
    environ = {"TRAINER_BATCH_SIZE": "7", "TRAINER_LR": "0.2"}
    given = parse(["gpt2", "--config", str(config), "--lr", "0.3"], environ)
    assert (given.lr, given.batch_size, given.grad_accum, given.amp, given.betas) == (0.3, 7, 5, False, (0.5, 0.6))
    assert given.origins["lr"] == "command line"
    assert given.origins["batch_size"] == "TRAINER_BATCH_SIZE"
    assert given.origins["grad_accum"] == f"{config}:3"
    assert "clip" not in given.origins


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1\nbatch_sise: 3\n", "run.yaml:2: unknown option 'batch-sise' (did you mean 'batch-size'?)"),
        ("lr: 1\n\nlr: 2\n", "run.yaml:3: lr is given already in line 1"),
        ("epochs: many\n", "run.yaml:1: argument --epochs: invalid int value: 'many'"),
        ("- lr\n", "expected lines of `option: value`"),
        ("lr: [\n", "not YAML"),
    ],
)
def test_a_wrong_file_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as error:
        parse(["gpt2", "--config", str(tmp_path / "run.yaml")], {})
    assert message in str(error.value)


def test_a_wrong_variable_is_reported_by_name() -> None:
    with pytest.raises(ConfigurationError, match="TRAINER_LRR in the environment: unknown option 'lrr'"):
        parse(["gpt2"], {"TRAINER_LRR": "1"})


def test_batches_from_worker_processes_are_the_same(train, tmp_path: Path) -> None:
    here = train(tmp_path / "here", *SHORT).losses()
    workers = train(tmp_path / "workers", *SHORT, "--num-workers", "2").losses()
    assert here == workers
    assert len(here) == 4


def test_a_micro_batch_found_by_trial_trains_the_same(train, tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", *SHORT).losses()
    tried = train(tmp_path / "tried", *SHORT, "--micro-batch-size", "auto")
    assert "micro-batch " in tried.out
    assert tried.losses() == pytest.approx(plain, rel=1e-5)


def test_a_smaller_micro_batch_is_accumulation(train, tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", *SHORT).losses()
    parts = train(tmp_path / "parts", *SHORT, "--micro-batch-size", "1").losses()
    assert parts == pytest.approx(plain, rel=1e-5)


def test_early_stopping_keeps_the_best_and_stays_stopped(train, tmp_path: Path) -> None:
    options = (
        "--max-steps", "40", "--batch-size", "4", "--eval-every", "2", "--checkpoint-every", "0", "--lr", "1",
        "--schedule", "constant", "--warmup-steps", "0", "--early-stopping", "loss", "--patience", "2",
        "--on-spike", "off", "--keep-checkpoints", "1",
    )  # fmt: skip
    stopped = train(tmp_path, *options)
    assert stopped.code == 0, stopped.err
    assert "early stopping at step" in stopped.out
    last = stopped.events("done")[0]["step"]
    evaluations = {event["step"]: event["loss"] for event in stopped.events("evaluation")}
    best = json.loads((tmp_path / "best.json").read_text())
    assert evaluations[best["step"]] == min(evaluations.values())
    assert last == best["step"] + 4 < 40
    assert (tmp_path / "checkpoints" / best["checkpoint"]).is_dir()
    again = train(tmp_path, *options)
    assert not again.losses()
    assert "early stopping" in again.out


def test_profile_leaves_a_page(train, tmp_path: Path) -> None:
    options = ("--max-steps", "8", *SHORT[2:], "--profile", "2")
    assert train(tmp_path, *options).code == 0
    page = (tmp_path / "profile" / "summary.md").read_text()
    for part in ("data", "forward", "backward", "optimizer"):
        assert part in page


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_other_optimizers_resume_bit_for_bit(train, tmp_path: Path, optimizer: str) -> None:
    options = (*SHORT[2:6], "--optimizer", optimizer, "--schedule", "constant", "--checkpoint-every", "2")
    whole = train(tmp_path / "whole", *options, "--max-steps", "4").losses()
    train(tmp_path / "parts", *options, "--max-steps", "2")
    assert train(tmp_path / "parts", *options, "--max-steps", "4").losses() == {s: whole[s] for s in (3, 4)}


def test_bf16_changes_the_products_only_where_it_is_native(train, tmp_path: Path) -> None:
    from trainer.engine.hardware.precision import has_native_bf16

    low = train(tmp_path, *SHORT, "--precision", "bf16")
    if has_native_bf16():
        assert low.events("started")[0]["precision"] == "bfloat16"
        assert low.code == 0
    else:
        assert low.code == 3
        assert "avx512_bf16" in low.err


@pytest.mark.parametrize(("steps", "message"), [(3, "profile: nothing was recorded"), (8, "summary.md")])
def test_a_run_too_short_for_its_profile_says_so(train, tmp_path: Path, steps: int, message: str) -> None:
    run = train(tmp_path, "--max-steps", str(steps), "--profile", "50")
    assert run.code == 0, run.err
    assert message in run.out
    assert (tmp_path / "profile" / "summary.md").exists() is (steps == 8)
