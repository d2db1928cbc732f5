"""An exhausted memory in the middle of training: on with smaller micro-batches, and the same training as with those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.observed import same, seen, state

COMMON = {"global_batch_size": 12, "batch_size": 12, "max_steps": 4, "lr": 0.05, "warmup_steps": 0}


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("too_much_for", ["forward", "backward"])
def test_training_continues_as_if_it_had_begun_with_what_fits(
    too_much_for: str, batch_norm: bool, observe: Any, tmp_path: Path
) -> None:
    wishes = {"room": 4, "too_much_for": too_much_for, "batch_norm": batch_norm}
    short = observe(tmp_path / "short", 1, wishes, **COMMON)
    small = observe(tmp_path / "small", 1, {"batch_norm": batch_norm}, **COMMON, micro_batch_size=3)
    assert (short.code, small.code) == (0, 0), short.err
    for size, half in ((12, 6), (6, 3)):
        assert f"out of memory with micro-batches of {size}: continuing with {half}" in short.err
    assert len(short.losses()) == 4
    assert short.losses() == small.losses()
    assert same(state(tmp_path / "short", 4), state(tmp_path / "small", 4))
    assert [len(one["indices"]) for one in seen(tmp_path / "short")] == [12, 6] + 4 * 4 * [3]
    assert seen(tmp_path / "short")[2:] == seen(tmp_path / "small")


def test_memory_that_holds_not_even_one_sample_ends_the_run(observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, 1, {"room": 0}, **COMMON)
    assert run.code == 1
    (failed,) = run.events("failed")
    assert (failed["owner"], failed["rank"], failed["error"]) == ("user", 0, "TooLittleMemoryError")
    assert "not even one sample fits into memory, a smaller batch does not help: try " in failed["message"]


def test_batches_that_workers_had_ready_are_not_lost(observe: Any, tmp_path: Path) -> None:
    short = observe(tmp_path / "short", 1, {"room": 6}, **COMMON, num_workers=2)
    assert short.code == 0, short.err
    assert short.losses() == observe(tmp_path / "small", **COMMON, micro_batch_size=6).losses()
    assert {event["micro_batch"] for event in short.events("step")} == {6}, "the size that was found to fit"


def test_one_rank_of_two_continues_with_less_and_the_sum_is_the_same(observe: Any, tmp_path: Path) -> None:
    """Rank 1 runs out of it before the micro-batch in which gradients are summed."""
    one = observe(tmp_path / "one", **COMMON)
    two = observe(tmp_path / "two", 2, {"room": 2, "short_rank": 1}, **COMMON, micro_batch_size=3)
    assert two.code == 0, two.err
    assert "rank 1 of 2 (alpha): out of memory with micro-batches of 3: continuing with 1" in two.err
    assert two.losses() == pytest.approx(one.losses(), rel=1e-6)
    rehearsed = 2
    assert {len(one["indices"]) for one in seen(tmp_path / "two", 0)[rehearsed:]} == {3}
    assert {len(one["indices"]) for one in seen(tmp_path / "two", 1)[rehearsed + 1 :]} == {1}


WIDE = 300_000
"""Its layers travel in buckets of their own, and the last layer's has gone out when the first one's fails."""


@pytest.mark.parametrize(
    ("sync", "static_graph", "too_much_for"),
    [("fp32", True, "forward"), ("fp32", True, "backward"), ("fp32", False, "backward"), ("int8", False, "backward")],
)
def test_a_rank_that_runs_out_while_gradients_are_summed_computes_them_again(
    sync: str, static_graph: bool, too_much_for: str, observe: Any, tmp_path: Path
) -> None:
    options = {**COMMON, "lr": 1e-6}
    wide = {"width": WIDE, "room": 2, "short_rank": 1, "too_much_for": too_much_for}
    short = observe(tmp_path / "short", 2, wide, **options, sync=sync, static_graph=static_graph)
    assert short.code == 0, short.err
    for size, half in ((6, 3), (3, 1)):
        assert f"rank 1 of 2 (alpha): out of memory with micro-batches of {size}: continuing with {half}" in short.err
    enough = observe(tmp_path / "enough", 1, {"width": WIDE}, **options)
    near = 1e-4 if sync == "fp32" else 0.02
    assert short.losses() == pytest.approx(enough.losses(), rel=near)
    norms = [[event["grad_norm"] for event in run.events("step")] for run in (short, enough)]
    assert norms[0] == pytest.approx(norms[1], rel=near)


@pytest.mark.parametrize("sync", ["fp32", "int8"])
def test_a_rank_that_runs_out_on_a_node_of_two_computes_again(sync: str, observe: Any, tmp_path: Path) -> None:
    """Its node waits for it within a bucket's sum, and the other node for the owners of the shards."""
    options = {**COMMON, "lr": 1e-6}
    wide = {"width": WIDE, "room": 2, "short_rank": 1, "too_much_for": "backward"}
    short = observe(tmp_path / "short", 4, wide, (2, 2), **options, sync=sync)
    assert short.code == 0, short.err
    assert "rank 1 of 4 (alpha): out of memory with micro-batches of 3: continuing with 1" in short.err
    enough = observe(tmp_path / "enough", 1, {"width": WIDE}, **options)
    near = 1e-4 if sync == "fp32" else 0.02
    assert short.losses() == pytest.approx(enough.losses(), rel=near)


def test_what_is_measured_before_the_first_step_fits(observe: Any, tmp_path: Path) -> None:
    options = {**COMMON, "sync": "auto", "shares": "auto"}
    run = observe(tmp_path, 2, {"room": 4, "short_rank": 1}, **options)
    assert run.code == 0, run.err
    assert "rank 1 of 2 (alpha): out of memory with micro-batches of 6 before the first step: continuing with 3" in (
        run.err
    )
    assert len(run.losses()) == 4
    (measured,) = run.events("measured")
    assert [node["micro_batch"] for node in measured["nodes"]] == [6, 3]


def test_the_trial_of_workers_fits(observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, 1, {"room": 4}, **{**COMMON, "num_workers": "auto"})
    assert run.code == 0, run.err
    assert "out of memory with micro-batches of 12 before the first step: continuing with 6" in run.err


@pytest.mark.parametrize("too_much_for", ["forward", "backward"])
def test_with_batch_norm_the_others_are_not_asked_twice(too_much_for: str, observe: Any, tmp_path: Path) -> None:
    wishes = {"room": 3, "short_rank": 1, "batch_norm": True, "too_much_for": too_much_for}
    run = observe(tmp_path, 2, wishes, **{**COMMON, "global_batch_size": 16}, micro_batch_size=4)
    assert run.code == 0, run.err
    assert "micro-batches of 4: continuing with 2" in run.err
    assert len(run.losses()) == 4


def test_halves_are_of_what_was_tried_not_of_what_was_allowed(observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, 1, {"room": 4}, **{**COMMON, "batch_size": 100})
    assert run.code == 0, run.err
    assert [len(one["indices"]) for one in seen(tmp_path)][:3] == [12, 6, 3]
    assert "micro-batches of 12: continuing with 6" in run.err
