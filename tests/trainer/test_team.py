"""Unequal machines: who trains, with which share of a step, and that it stays the same training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.conftest import Result
from tests.trainer.observed import seen, state
from trainer.config import RankInfo
from trainer.engine import rank_speed
from trainer.engine.group import Group
from trainer.engine.rank_speed import WINDOW, ComputeTimes, ShareBalancer, changed_shares
from trainer.errors import TrainerError

Observe = Callable[..., Result]
BY_SPEED = {"sync": "fp32", "shares": "auto", "optimizer": "sgd", "lr": 1e-3, "schedule": "constant", "warmup_steps": 0}


def model_of(run_dir: Path, step: int) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in state(run_dir, step)["model"].values()])


def test_speeds_of_1_4_30_get_such_shares_and_the_gradient_of_one_process(observe: Observe, tmp_path: Path) -> None:
    options = {**BY_SPEED, "global_batch_size": 70, "batch_size": 70, "max_steps": 3}
    speeds = {"sample_s": (0.120, 0.030, 0.004), "room": 70}  # far above the latency of a loaded computer
    three = observe(tmp_path / "three", 3, speeds, **options)
    assert three.code == 0, three.err
    shares = three.events("forecast")[0]["rows"][1]["shares"]
    assert sum(shares) == 70
    assert shares[0] < shares[1] < shares[2]
    assert [len(seen(tmp_path / "three", rank)[-1]["indices"]) for rank in range(3)] == shares
    one = observe(tmp_path / "one", 1, {"room": 70}, **options)
    assert three.losses() == pytest.approx(one.losses(), rel=1e-6)
    # Rate 1e-3, three steps without momentum to speak of: what moved is the gradient.
    difference = (model_of(tmp_path / "three", 3) - model_of(tmp_path / "one", 3)).norm()
    moved = (model_of(tmp_path / "one", 3) - model_of(tmp_path / "one", 3).mean()).norm()
    assert float(difference / moved) < 1e-6


@pytest.mark.parametrize("slow", [1, 0])
def test_who_would_slow_the_run_down_is_left_out(observe: Observe, tmp_path: Path, slow: int) -> None:
    """The same holds for rank 0: then another rank reports and writes the checkpoints."""
    speeds = {"sample_s": (0.2, 0.0005) if slow == 0 else (0.0005, 0.2)}
    options = {**BY_SPEED, "sync": "auto", "global_batch_size": 6, "max_steps": 6, "checkpoint_every": 3}
    two = observe(tmp_path / "two", 2, speeds, **options)
    assert two.code == 0, two.err
    (left,) = two.events("left_out")
    assert left["rank"] == slow
    assert "a step would take" in left["why"]
    assert {event["rank"] for event in two.events("step")} == {1 - slow}
    assert [event["step"] for event in two.events("checkpoint")] == [3, 6]
    assert two.losses() == pytest.approx(observe(tmp_path / "one", **options).losses(), rel=1e-6)


def test_a_node_that_slows_down_gets_a_smaller_share(observe: Observe, tmp_path: Path) -> None:
    options = {**BY_SPEED, "global_batch_size": 16, "batch_size": 16, "max_steps": 4 * WINDOW}
    wishes = {"sample_s": (0.008, 0.008), "slower_after": 12 + WINDOW}
    two = observe(tmp_path / "two", 2, wishes, **options)
    assert two.code == 0, two.err
    changes = [event["shares"] for event in two.events("rebalanced") if event["rank"] == 0]
    assert changes, "shares never changed"
    last = list(changes[-1].values())  # the first one may be a moment's, before it is slower
    assert last[1] < 8
    assert sum(last) == 16
    assert "shares of a step follow the nodes' speed" in two.out
    assert two.losses() == pytest.approx(observe(tmp_path / "one", **options).losses(), rel=1e-6)


def test_a_slow_rank_with_a_fixed_share_is_reported(observe: Observe, tmp_path: Path) -> None:
    options = {**BY_SPEED, "shares": "equal", "global_batch_size": 8, "batch_size": 8, "max_steps": 6}
    two = observe(tmp_path, 2, {"sample_s": (0.01, 0.06)}, **options)
    assert two.code == 0, two.err
    steps = two.events("step")
    assert "compute_s" not in steps[0]  # the first steps compile and allocate
    (fast, slow) = steps[-1]["compute_s"].values()
    assert 4 * 0.01 < fast < slow
    assert slow > 4 * 0.06
    assert slow > 1.5 * fast


def test_the_usual_time_is_reported_and_not_a_hiccup() -> None:
    times = ComputeTimes(["alpha", "beta"])
    for step in range(2 * rank_speed.WINDOW):
        times.add([0.01, 1.0 if step % 5 == 0 else 0.02], [4, 2])
    assert times.read() == {"compute_s": {"alpha": pytest.approx(0.04), "beta": pytest.approx(0.04)}}


def test_nothing_is_reported_of_few_steps_or_one_rank() -> None:
    few, alone = ComputeTimes(["alpha", "beta"]), ComputeTimes(["alpha"])
    for _ in range(rank_speed.FEWEST - 1):
        few.add([0.01, 0.02], [4, 2])
    for _ in range(rank_speed.WINDOW):
        alone.add([0.01], [4])
    assert (few.read(), alone.read()) == ({}, {})


def test_a_forecast_alone_trains_nothing(observe: Observe, tmp_path: Path) -> None:
    two = observe(tmp_path, 2, {"sample_s": (0.001, 0.001)}, **BY_SPEED, forecast=True)
    assert two.code == 0, two.err
    assert two.events("forecast")[0]["rows"]
    assert not two.events("step")
    assert two.events("done")
    assert not (tmp_path / "checkpoints").exists()


def test_a_resumed_run_does_not_measure_again(observe: Observe, tmp_path: Path) -> None:
    speeds = {"sample_s": (0.02, 0.01)}
    options = {**BY_SPEED, "sync": "auto", "global_batch_size": 20, "batch_size": 20}
    first = observe(tmp_path, 2, speeds, **options, max_steps=4)
    again = observe(tmp_path, 2, speeds, **options, max_steps=6)
    assert (first.code, again.code) == (0, 0), again.err
    assert first.events("forecast")
    assert not again.events("forecast")
    assert "as before: --sync" in again.out
    assert min(again.losses()) == 5


class Slow(dist.HashStore):
    """Two minutes pass before the others end; or their store goes away."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__()
        self._answers = list(answers)

    def wait(self, *_: Any) -> None:
        answer = self._answers.pop(0)
        if answer:
            raise answer


def waiting(store: dist.Store) -> Group:
    return Group(
        place=RankInfo(rank=1, world_size=2, node="beta"), backend="gloo", device=torch.device("cpu"), store=store
    )


def test_who_is_left_out_waits_as_long_as_it_takes() -> None:
    store = Slow(dist.DistStoreError("timeout"), dist.DistStoreError("timeout"), None)
    waiting(store).wait_finished()
    assert store._answers == []


def test_who_is_left_out_does_not_outlive_the_others() -> None:
    with pytest.raises(TrainerError, match=r"rank 1 of 2 \(beta\) was left out, and the others are gone"):
        waiting(Slow(dist.DistNetworkError("closed"))).wait_finished()


def test_one_hiccup_changes_no_shares() -> None:
    balancer = ShareBalancer([8, 8])
    for step in range(4 * WINDOW):
        assert balancer.update([0.01, 0.5 if step % WINDOW == 3 else 0.01]) is None


def test_shares_settle_where_nodes_differ() -> None:
    balancer = ShareBalancer([8, 8])
    changes = [shares for _ in range(6 * WINDOW) if (shares := balancer.update([0.01, 0.03]))]
    assert changes == [(12, 4)]


def test_shares_forget_the_speed_of_another_program() -> None:
    for restarts, expected in ((True, (8, 8)), (False, None)):
        balancer = ShareBalancer([12, 4])
        for _ in range(2 * WINDOW - 1):
            balancer.update([0.01, 0.03])
        if restarts:  # the model is compiled, and on the second rank that is three times as fast
            balancer.restart()
        found = [balancer.update([0.01, 0.01]) for _ in range(WINDOW)]
        assert next(filter(None, found), None) == expected


def test_what_changed_is_named() -> None:
    assert changed_shares(["alpha", "beta", "gamma"], [8, 8, 8], [10, 8, 6]) == "alpha 8 → 10, gamma 8 → 6"
