"""Training in one process: exactly resumed, honestly refused, and heard by the orchestrator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEEDS_TORCH

pytestmark = NEEDS_TORCH

STEPS = (
    "--max-steps",
    "8",
    "--batch-size",
    "4",
    "--dropout",
    "0.1",
    "--eval-every",
    "4",
    "--checkpoint-every",
    "4",
)


def flip_a_bit(checkpoint: Path) -> None:
    content = bytearray((checkpoint / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / "state.pt").write_bytes(content)


def steps(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir) -> Path:
    """A run to the end, whose folder tests may copy: its checkpoints are of steps 4 and 8."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def whole(finished: Path, train):
    """The result of that run; it is made by the first test that asks."""
    saved = finished / "result"
    if not saved.exists():
        result = train(finished / "run", *STEPS, "--prompt", "en el")
        assert result.code == 0, result.err
        saved.write_text(result.out)
    return finished / "run", saved.read_text()


def test_events_tell_the_whole_story_in_order(whole) -> None:
    _, out = whole
    data = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("@orch ")]
    names = [event["event"] for event in data]
    assert [name for name in names if name != "checkpoint"] == [
        "started", "joined", "options", *["step"] * 4, "evaluation", *["step"] * 4, "evaluation", "sample", "done",
    ]  # fmt: skip
    at = [number for number, name in enumerate(names) if name == "checkpoint"]
    assert len(at) == 2
    assert names.index("evaluation") < at[0] < at[1] < names.index("sample")  # each when it is written
    fields = {
        "started": {"device", "threads", "precision", "torch", "onednn", "backend", "attempt"},
        "joined": {"world_size", "backend", "samples_per_step"},
        "options": {"options"},
        "step": {
            "step",
            "final_step",
            "ended_at",
            "loss",
            "per_s",
            "tflops",
            "unit",
            "lr",
            "epoch",
            "waiting",
            "exchanging",
            "grad_norm",
            "micro_batch",
        },
        "evaluation": {"step", "loss", "perplexity", "bits_per_byte"},
        "checkpoint": {"step", "path", "sha256", "verified", "stopped_s", "seconds"},
        "sample": {"text"},
        "done": {"step", "loss", "seconds"},
    }
    for event in data:
        timed = {"remaining_s"} if event["event"] == "step" and event["step"] > 1 else set()
        assert set(event) == {"event", "t", "rank", "node"} | fields[event["event"]] | timed
    steps = [event for event in data if event["event"] == "step"]
    assert {event["final_step"] for event in steps} == {8}
    assert (steps[-1]["remaining_s"], steps[1]["remaining_s"] > 0) == (0, True)
    assert steps[0]["loss"] > data[-1]["loss"]
    assert data[-2]["text"].startswith("en el")
    assert "💻 LOCAL MODE: using cpu with" in out
    assert "\nstep 8/8  loss " in out


def test_tensorboard_and_metrics_are_written(whole) -> None:
    run_dir, _ = whole
    assert list((run_dir / "tensorboard").glob("events.out.tfevents.*"))
    kinds = [json.loads(line)["kind"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert (kinds.count("train"), kinds.count("validation")) == (8, 2)


def test_a_resumed_run_is_bit_identical(whole, train, tmp_path: Path) -> None:
    run_dir, out = whole
    shutil.copytree(run_dir / "checkpoints/step-00000004", tmp_path / "checkpoints/step-00000004")
    resumed = train(tmp_path, *STEPS)
    assert resumed.events("resumed")[0]["step"] == 4
    data = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("@orch ")]
    expected = {event["step"]: event["loss"] for event in data if event["event"] == "step"}
    assert resumed.losses() == {step: expected[step] for step in (5, 6, 7, 8)}
    evaluations = [event["loss"] for event in data if event["event"] == "evaluation"]
    assert resumed.events("evaluation")[-1]["loss"] == evaluations[-1]


def test_a_bit_flipped_checkpoint_is_named_and_the_one_before_used(whole, train, tmp_path: Path) -> None:
    run_dir, _ = whole
    shutil.copytree(run_dir / "checkpoints", tmp_path / "checkpoints")
    flip_a_bit(tmp_path / "checkpoints/step-00000008")
    resumed = train(tmp_path, *STEPS)
    assert resumed.code == 0
    assert "step-00000008: state.pt has changed" in resumed.out
    assert resumed.events("resumed")[0]["step"] == 4
    assert resumed.events("checkpoint")[-1] == resumed.events("checkpoint")[-1] | {
        "step": 8,
        "verified": True,
    }


def test_all_bad_is_refused_and_from_scratch_sets_them_aside(whole, train, tmp_path: Path) -> None:
    run_dir, _ = whole
    shutil.copytree(run_dir / "checkpoints", tmp_path / "checkpoints")
    for name in steps(tmp_path):
        flip_a_bit(tmp_path / "checkpoints" / name)
    refused = train(tmp_path, *STEPS)
    assert refused.code == 3
    assert "--from-scratch" in refused.err
    assert refused.events("failed")[0]["error"] == "ConfigurationError"
    again = train(tmp_path, *STEPS, "--from-scratch")
    assert again.code == 0
    assert not again.events("resumed")
    assert len(list((tmp_path / "checkpoints.set-aside-1").iterdir())) == 2


def test_a_restarted_container_keeps_its_progress(whole, train, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ORCH_RUN_ID", "r7")
    short = [*STEPS[2:], "--from-scratch", "--max-steps"]
    assert not train(tmp_path, *short, "4").events("resumed")
    assert train(tmp_path, *short, "6").events("resumed")[0]["step"] == 4


def test_resuming_from_a_path_in_another_run(whole, train, tmp_path: Path) -> None:
    run_dir, _ = whole
    resumed = train(tmp_path, *STEPS, "--resume", str(run_dir / "checkpoints/step-00000004"))
    assert resumed.events("resumed")[0]["step"] == 4
    assert sorted(resumed.losses()) == [5, 6, 7, 8]
    back = train(tmp_path, *STEPS, "--resume", str(run_dir / "checkpoints/step-00000004"))
    assert sorted(back.losses()) == [5, 6, 7, 8]
    assert "later checkpoints are now in" in back.out


def test_another_model_is_refused_by_name(whole, train) -> None:
    run_dir, _ = whole
    refused = train(run_dir, *STEPS, "--width", "64")
    assert refused.code == 3
    assert "width: the checkpoint has 32, this run 64" in refused.err


def test_nothing_left_to_train_is_reported(whole, train) -> None:
    run_dir, _ = whole
    again = train(run_dir, *STEPS)
    assert again.code == 0
    assert "already reached" in again.out
    assert again.events("done")[0]["loss"] is None


def test_missing_data_is_exit_3_and_says_how_to_make_it(call, tmp_path: Path) -> None:
    refused = call("gpt2", "--preset", "tiny", "--data-dir", str(tmp_path / "Data"), "--run-dir", str(tmp_path))
    assert refused.code == 3
    assert "prepare --text" in refused.err


def test_a_loss_that_is_nan_ends_the_run(train, tmp_path: Path) -> None:
    failed = train(tmp_path, "--max-steps", "30", "--lr", "1e30", "--warmup-steps", "0", "--clip", "0")
    assert failed.code == 1
    assert "a smaller --lr" in failed.err
    assert failed.events("failed")[0]["frame"].endswith("in read")


def test_accumulation_and_batches_do_not_change_the_losses(train, tmp_path: Path) -> None:
    common = ("--max-steps", "4", "--eval-every", "0", "--checkpoint-every", "0")
    whole = train(tmp_path / "a", *common, "--batch-size", "6").losses()
    assert len(whole) == 4
    parts = train(tmp_path / "b", *common, "--batch-size", "2", "--grad-accum", "3").losses()
    uneven = train(tmp_path / "c", *common, "--batch-size", "4", "--global-batch-size", "6").losses()
    assert parts == pytest.approx(whole, rel=1e-5)
    assert uneven == pytest.approx(whole, rel=1e-5)
    assert steps(tmp_path / "a") == ["step-00000004"]


def test_epochs_and_the_number_of_saved_checkpoints(train, tmp_path: Path) -> None:
    result = train(
        tmp_path, "--epochs", "1", "--batch-size", "32", "--checkpoint-every", "1", "--keep-checkpoints", "2",
        "--eval-every", "0",
    )  # fmt: skip
    last = result.events("step")[-1]
    assert 0.9 < last["epoch"] <= 1
    assert len(steps(tmp_path)) == 2
    assert not result.events("evaluation")


def test_a_checkpoint_writes_without_the_data(whole, call) -> None:
    run_dir, _ = whole
    ask = ("gpt2", "sample", "--checkpoint", str(run_dir), "--prompt", "en el", "--tokens", "12")
    first, second = call(*ask, "--seed", "1"), call(*ask, "--seed", "1")
    assert first.code == 0
    assert first.out == second.out
    assert first.out.startswith("en el")
    likeliest = call(*ask, "--temperature", "0", "--seed", "1").out
    assert likeliest == call(*ask, "--temperature", "0", "--seed", "2").out


def test_an_evaluation_later_is_that_of_the_training(whole, call, data_dir: Path) -> None:
    run_dir, out = whole
    data = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("@orch ")]
    last = [event for event in data if event["event"] == "evaluation"][-1]
    ran = call("gpt2", "evaluate", "--checkpoint", str(run_dir), "--data-dir", str(data_dir), "--batch-size", "8")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[-1])["loss"] == pytest.approx(last["loss"], abs=1e-3)


def test_the_learning_rate_rises_and_falls() -> None:
    from trainer.config import TrainOptions
    from trainer.engine.optimization.schedule import learning_rate

    options = TrainOptions(lr=1.0, warmup_steps=10)
    rates = [learning_rate(s, 100, options) for s in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[9] == rates[10]
    assert rates[-1] == pytest.approx(0.1, abs=0.001)
    assert learning_rate(99, 100, TrainOptions(lr=1.0, warmup_steps=10, schedule="constant")) == 1.0


@pytest.mark.parametrize("total", [1, 2, 3, 5, 10, 100, 997])
@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_schedules_fall_as_torchs_do(total: int, warmup: int) -> None:
    import torch

    from trainer.config import TrainOptions
    from trainer.engine.optimization.schedule import learning_rate

    length = max(1, total - warmup)
    for schedule, theirs in {
        "linear": lambda it: torch.optim.lr_scheduler.LinearLR(it, 1.0, 0.0, total_iters=length),
        "cosine": lambda it: torch.optim.lr_scheduler.CosineAnnealingLR(it, T_max=length, eta_min=0.0),
    }.items():
        options = TrainOptions(lr=0.25, min_lr=0.0, warmup_steps=warmup, schedule=schedule)
        rates = [learning_rate(step, total, options) for step in range(1, total + 1)]
        assert rates[:warmup] == [0.25 * step / warmup for step in range(1, min(warmup, total) + 1)]
        assert rates[warmup:] == pytest.approx(torch_rates(theirs, max(0, total - warmup)), rel=1e-6)
        assert min(rates) > 0


@pytest.mark.parametrize("total", [1, 2, 3, 5, 7, 10, 100, 997])
def test_one_cycle_is_torchs_own(total: int) -> None:
    import torch

    from trainer.config import TrainOptions
    from trainer.engine.optimization.schedule import learning_rate

    options = TrainOptions(lr=0.25, schedule="onecycle")
    rates = [learning_rate(step, total, options) for step in range(1, total + 1)]
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    assert rates == pytest.approx(torch_rates(lambda it: one_cycle(it, 0.25, total_steps=total), total), rel=1e-9)


def torch_rates(schedule: Callable[[Any], Any], total: int) -> list[float]:
    """The learning rates of the steps of a loop that follows a scheduler of torch."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.25, momentum=0.9)
    scheduler, rates = schedule(optimizer), []
    for step in range(total):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if step < total - 1:
            scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("options", "last"),
    [((), 300), (("--max-steps", "2"), 2), (("--epochs", "1", "--global-batch-size", "100"), 5)],
)
def test_the_lab_preset_has_an_end_of_its_own(train, tmp_path, options, last) -> None:
    result = train(tmp_path, "--preset", "lab", "--eval-every", "0", "--checkpoint-every", "0", *options)
    assert result.events("done")[0]["step"] == last
