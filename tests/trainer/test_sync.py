"""Sync methods between three real processes (sync_ranks.py is what they run)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import MODEL, Call, Ranks
from tests.trainer.sync_ranks import WAYS
from trainer.config import TrainOptions
from trainer.errors import OptionError

pytestmark = pytest.mark.slow

LARGEST_ERROR = {
    "fp32": 1e-6, "fp16": 1e-3, "int8": 0.02, "int4+8": 0.2, "int4": 0.2, "int2": 0.6, "topk": 0.6, "powersgd": 0.9,
    "local": 0.02, "diloco": 0.02, "streaming diloco": 0.2,
}  # fmt: skip
"""Error of one step's gradient, by norm, before error feedback makes up for it."""
WITH_FEEDBACK = [way for way in WAYS if way not in ("fp32", "powersgd", "local", "diloco", "streaming diloco")]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    with closing(Ranks(3, str(tmp_path_factory.mktemp("sync")), module="tests.trainer.sync_ranks")) as run:
        result = run.result()
    assert result.code == 0, result.err
    found: dict[str, dict[str, float]] = json.loads(result.out.splitlines()[-1])
    return found


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_have_the_same_weights_to_the_last_bit(reported: dict[str, dict[str, float]], way: str) -> None:
    assert reported[way]["alike"] == reported[way]["fewer"] == 0


def test_weights_that_differ_become_rank_0s(reported: dict[str, dict[str, float]]) -> None:
    assert reported["weights"]["corrected"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_arrives_within_what_its_code_can_say(reported: dict[str, dict[str, float]], way: str) -> None:
    assert reported[way]["error"] < LARGEST_ERROR[way]
    assert way == "fp32" or reported[way]["error"] > 1e-5, "nothing was encoded"


@pytest.mark.parametrize("way", WAYS)
def test_resumed_it_continues_as_if_undisturbed(reported: dict[str, dict[str, float]], way: str) -> None:
    # DDP cuts its buckets again after the first step, and so sums in another order.
    assert reported[way]["resumed"] <= (1e-7 if way == "fp32" else 0)


@pytest.mark.parametrize("way", WITH_FEEDBACK)
def test_fewer_ranks_still_send_what_all_had_left(reported: dict[str, dict[str, float]], way: str) -> None:
    assert reported[way]["unsent"] > 0
    assert reported[way]["lost"] < 1e-6 * max(1.0, reported[way]["unsent"])


# ── Whole runs ────────────────────────────────────────────────────────────────────────────────────

RUNS = {
    "fp32": ("--sync", "fp32", "--layers", "2", "--width", "128", "--heads", "4"),
    "int4": ("--sync", "int4"),
    "powersgd": ("--sync", "powersgd"),
    "streaming": ("--sync", "diloco", "--sync-every", "4", "--sync-warmup", "3", "--sync-fragments", "2",
                  "--sync-delay", "1"),
}  # fmt: skip


@pytest.fixture
def words(data_dir: Path) -> Callable[..., list[str]]:
    def made(run_dir: Path, *options: str) -> list[str]:
        return [
            "gpt2", "train", *MODEL, "--data-dir", str(data_dir), "--run-dir", str(run_dir), "--log-every", "1",
            "--precision", "fp32", "--num-workers", "0", "--no-compile", "--eval-every", "6", "--max-steps", "12",
            "--checkpoint-every", "5", "--shares", "equal", *options,
        ]  # fmt: skip

    return made


@pytest.mark.parametrize("way", RUNS)
def test_a_killed_run_repeats_its_losses(
    way: str, words: Callable[..., list[str]], forked: Any, tmp_path: Path
) -> None:
    ranks = 3 if way == "fp32" else 2  # a sum of two has one order only; the other ways have one of their own
    whole = forked(ranks, *words(tmp_path / "whole", *RUNS[way])).result()
    assert whole.code == 0, whole.err

    killed = forked(ranks, *words(tmp_path / "killed", *RUNS[way]))
    for line in killed.lines():
        if '"event": "checkpoint"' in line and '"step": 6' in line:
            killed.kill()
            break
    before = killed.result()

    after = forked(ranks, *words(tmp_path / "killed", *RUNS[way])).result()
    assert after.code == 0, after.err
    assert after.events("resumed")[0]["step"] == 6  # saved there as the best so far
    assert {**before.losses(), **after.losses()} == whole.losses()
    assert after.events("evaluation")[-1]["loss"] == whole.events("evaluation")[-1]["loss"]


def test_a_run_with_fewer_ranks_continues_and_says_what_is_lost(
    words: Callable[..., list[str]], forked: Any, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")
    first = forked(3, *words(tmp_path, "--sync", "int4", "--max-steps", "5", "--global-batch-size", "12")).result()
    assert first.code == 0, first.err
    (lost,) = tmp_path.glob("ranks/step-*5/rank-2-of-3.pt")
    damaged = bytearray(lost.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    lost.write_bytes(damaged)
    second = forked(2, *words(tmp_path, "--sync", "int4", "--global-batch-size", "12")).result()
    assert second.code == 0, second.err
    assert "rank-2-of-3.pt is not used" in second.err
    assert "of what 3 ranks had not yet sent at step 5, the files of 2 are there" in second.err
    assert min(second.losses()) == 6


def test_another_method_continues_without_an_error(
    words: Callable[..., list[str]], forked: Any, tmp_path: Path
) -> None:
    """State of fp32 is empty; that of int4 is of no use to PowerSGD, nor that of one rank to another's."""
    ways = (("fp32",), ("int4",), ("powersgd", "--sync-rank", "2"), ("powersgd", "--sync-rank", "3"))
    runs = []
    for number, way in enumerate(ways):
        run = forked(2, *words(tmp_path, "--max-steps", str(2 * number + 2), "--sync", *way)).result()
        assert run.code == 0, run.err
        runs.append(run)
    assert all("had not yet sent" not in run.err and "is not used" not in run.err for run in runs[:3])
    assert "it was kept for powersgd, rank 2, 1 fragments, buckets of " in runs[3].err
    assert ", and this run continues with powersgd, rank 3, 1 fragments, buckets of " in runs[3].err


def test_files_of_ranks_stay_as_long_as_their_checkpoints(
    words: Callable[..., list[str]], forked: Any, tmp_path: Path
) -> None:
    options = ("--sync", "int8", "--checkpoint-every", "2", "--keep-checkpoints", "2", "--eval-every", "0")
    run = forked(2, *words(tmp_path, *options)).result()
    assert run.code == 0, run.err
    stay = ["step-00000010", "step-00000012"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == stay
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == stay
    assert sorted(path.name for path in (tmp_path / "ranks/step-00000012").iterdir()) == [
        "rank-0-of-2.pt",
        "rank-1-of-2.pt",
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sync_density": 0.0}, "--sync-density 0"),
        ({"outer_momentum": 1.0}, "--outer-momentum 1"),
        ({"sync_delay": 5, "sync_every": 10, "sync_fragments": 2}, "--sync-delay 5"),
        ({"sync_every": 0}, "--sync-every 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainOptions(**wrong)
