"""A batch that spoils the loss, in real runs: named by step and rank, and answered as the user wishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.observed import SAMPLES, same, state
from trainer.data.order import Shuffled
from trainer.engine.guard import ENOUGH

SEED = 1337
STREAM = Shuffled(SAMPLES, SEED).take(0, SAMPLES).tolist()
COMMON = {"seed": SEED, "warmup_steps": 0, "checkpoint_every": 1, "keep_checkpoints": 100}
PAIRS = {**COMMON, "global_batch_size": 2, "batch_size": 2, "max_steps": 5}
BAD = 3
"""The step that meets the sample without a number, the second of its two and so rank 1's of two."""
NAN = {"nan_sample": STREAM[2 * BAD - 1]}


def moved(run_dir: Path, step: int) -> bool:
    """Return whether that step changed weights, or anything that the optimizer keeps."""
    before, after = state(run_dir, step - 1), state(run_dir, step)
    return not same([before["model"], before["optimizer"]["state"]], [after["model"], after["optimizer"]["state"]])


def test_nan_stops_before_it_is_in_the_weights(observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, 1, NAN, **PAIRS)
    assert run.code == 1
    reported = run.events("failed")[0]["message"]
    assert reported.startswith(f"the loss is nan at step {BAD} on rank 0: try a smaller --lr")
    assert reported in run.err
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == f"step-{BAD - 1:08d}"


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_skipped_step_changes_nothing_and_training_continues(batch_norm: bool, observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, 1, {**NAN, "batch_norm": batch_norm}, **PAIRS, on_nan="skip")
    assert run.code == 0, run.err
    assert f"the loss is nan at step {BAD} on rank 0; this update is skipped (1 in a row)" in run.out
    assert {step: moved(tmp_path, step) for step in (2, 3, 4, 5)} == {2: True, 3: False, 4: True, 5: True}


def test_the_rank_with_the_bad_sample_is_named_and_all_skip_alike(observe: Any, tmp_path: Path) -> None:
    one = observe(tmp_path / "one", 1, NAN, **PAIRS, on_nan="skip").losses()
    two = observe(tmp_path / "two", 2, NAN, **PAIRS, on_nan="skip")
    assert two.code == 0, two.err
    assert f"the loss is nan at step {BAD} on rank 1; this update is skipped (1 in a row)" in two.out
    assert not moved(tmp_path / "two", BAD)
    losses = two.losses()
    assert losses.pop(BAD) is one.pop(BAD) is None
    assert losses == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize(
    ("ranks", "sync", "optimizer"),
    [(1, "fp32", "adamw"), (1, "fp32", "sgd"), (2, "fp32", "adamw"), (2, "int8", "sgd"), (2, "topk", "adamw")],
)
@pytest.mark.parametrize("bad", [1, BAD])
def test_read_late_or_at_once_a_bad_step_changes_the_same(
    bad: int, ranks: int, sync: str, optimizer: str, observe: Any, tmp_path: Path
) -> None:
    per_step = 2 * ranks
    wishes = {"nan_sample": STREAM[per_step * bad - 1], "batch_norm": True, "width": 64}
    options = {**PAIRS, "global_batch_size": per_step, "checkpoint_every": 0, "on_nan": "skip"}
    options |= {"sync": sync, "optimizer": optimizer}
    runs = {}
    for on_spike in ("warn", "skip"):  # with skip the figures decide on the update, and so are read at once
        runs[on_spike] = observe(tmp_path / on_spike, ranks, wishes, **options, on_spike=on_spike)
        assert f"the loss is nan at step {bad} on rank {ranks - 1}; this update is skipped (1" in runs[on_spike].out
    late, at_once = (state(tmp_path / name, 5) for name in ("warn", "skip"))
    assert runs["warn"].losses() == runs["skip"].losses()
    assert same(late["model"], at_once["model"])
    assert same(late["guard"], at_once["guard"])
    assert not any(one.isnan().any() for one in late["model"].values())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("checkpoint_every", [0, BAD])
def test_a_bad_step_read_late_stops_without_a_checkpoint_of_it(
    checkpoint_every: int, ranks: int, observe: Any, tmp_path: Path
) -> None:
    run = observe(tmp_path, ranks, NAN, **PAIRS | {"checkpoint_every": checkpoint_every})
    assert run.code == 1
    assert run.events("failed")[0]["message"].startswith(f"the loss is nan at step {BAD} on rank {ranks - 1}")
    assert BAD + 1 not in run.losses()
    assert not (tmp_path / "checkpoints" / f"step-{BAD:08d}").exists()


def test_figures_of_a_skipped_step_stay_json(observe: Any, tmp_path: Path) -> None:
    observe(tmp_path, 1, NAN, **PAIRS, on_nan="skip")

    def refused(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    figures = {line["step"]: line for line in (json.loads(line, parse_constant=refused) for line in lines)}
    assert [step for step, line in figures.items() if line["loss"] is None] == [BAD]


@pytest.mark.parametrize("wish", ["off", "warn", "skip", "stop"])
def test_a_spike_is_answered_as_wished(wish: str, observe: Any, tmp_path: Path) -> None:
    step = ENOUGH + 3
    options = {**COMMON, "batch_size": 1, "max_steps": step + 1, "lr": 1e-3}
    run = observe(tmp_path, 1, {"steep_sample": STREAM[step - 1]}, **options, on_spike=wish, spike_factor=1e5)
    named = f" at step {step}, " in run.out + run.err and "times the usual" in run.out + run.err
    assert named is (wish != "off")
    if wish == "stop":
        assert (run.code, "try a smaller --lr or --clip" in run.err) == (1, True)
        assert not (tmp_path / "checkpoints" / f"step-{step:08d}").exists()
    else:
        assert run.code == 0, run.err
        assert moved(tmp_path, step) is (wish != "skip")
        assert moved(tmp_path, step + 1)


def test_a_jump_below_the_factor_is_no_spike(observe: Any, tmp_path: Path) -> None:
    step = ENOUGH + 3
    options = {**COMMON, "batch_size": 1, "max_steps": step, "lr": 1e-3, "on_spike": "stop"}
    run = observe(tmp_path, 1, {"steep_sample": STREAM[step - 1]}, **options, spike_factor=1e15)
    assert (run.code, "times the usual" in run.out) == (0, False)
