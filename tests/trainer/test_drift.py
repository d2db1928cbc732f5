"""Ranks whose weights have left those of the others end the run, named, before a checkpoint is written of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.trainer.conftest import Result
from trainer.agent.rank_exit import classify_exception
from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.engine.sync.ddp import Alone
from trainer.engine.weights import apart, check_weights_match, checksum
from trainer.errors import DriftError

Observe = Callable[..., Result]


@pytest.mark.parametrize("way", ["fp32", "int8"])
def test_the_rank_that_drifts_is_named_and_nothing_is_saved_of_it(observe: Observe, tmp_path: Path, way: str) -> None:
    # Eight steps between checkpoints: one is written while the training continues, and reported some steps later.
    options = {"sync": way, "batch_size": 4, "max_steps": 24, "checkpoint_every": 8}
    run = observe(tmp_path, 3, {"drifts_after": 9, "slow_rank": 2}, **options)
    assert run.code != 0
    failed = run.events("failed")
    assert failed, run.out
    assert {event["error"] for event in failed} == {"DriftError"}
    assert {event["owner"] for event in failed} == {"infrastructure"}  # it restarts from the last checkpoint
    assert all(
        "the weights of rank 2 (alpha.2) are no longer the other ranks' after step" in e["message"] for e in failed
    )
    step = int(failed[0]["message"].split("after step ")[1].split(":")[0])
    assert [event["step"] for event in run.events("checkpoint")] == list(range(8, step, 8))


def test_a_drift_is_classified_alike_by_the_controller() -> None:
    error = DriftError("the weights of rank 1 (beta) are no longer the other ranks' after step 100: no checkpoint")
    found = classify_exception(error)
    assert (found.id, found.owner) == ("training.drift", "infrastructure")


def network(factor: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10))
    with torch.no_grad():
        net[0].weight.mul_(factor)
    return net


def test_rounding_is_no_drift_and_a_percent_is() -> None:
    sums = [checksum(network(factor).parameters()) for factor in (1.0, 1.0 + 1e-6, 1.01)]
    assert apart(sums[:2]) == []
    assert apart([sums[0], sums[2], sums[1]]) == [1]


def test_of_two_ranks_neither_is_right() -> None:
    one, other = (checksum(network(factor).parameters()) for factor in (1.0, 1.01))
    assert apart([one, other]) == [0, 1]
    assert apart([one, one]) == []


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 0.0])
def test_weights_that_are_no_numbers_are_apart(broken: float) -> None:
    sound = checksum(network().parameters())
    lost = checksum(network(broken).parameters())
    assert apart([sound, lost, sound]) == [1]
    assert apart([lost, lost]) == []


def test_a_weight_that_is_far_off_shows_among_many() -> None:
    net = nn.Linear(1000, 1000)
    before = checksum(net.parameters())
    with torch.no_grad():
        net.weight[17, 4] += 1.0
    assert apart([before, before, checksum(net.parameters())]) == [2]


def test_a_rank_alone_is_like_itself() -> None:
    model = network()
    check_weights_match(Alone(model), Group(place=RankInfo(), backend="none", device=torch.device("cpu")), 1)
