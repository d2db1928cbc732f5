"""Muon's matrices shared by the ranks of a node (muon_ranks.py is what they run)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import MODEL
from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.engine.optimization.muon import Muon
from trainer.engine.optimization.shared_muon import _even, compile_if_faster, share_if_faster

SHARED = "Muon's matrices are "


@pytest.mark.parametrize("nodes", [(2,), (3,), (2, 2), (3, 2)], ids=str)
def test_shared_matrices_give_the_bits_of_each_rank_by_itself(nodes: tuple[int, ...], forked: Any) -> None:
    run = forked(sum(nodes), module="tests.trainer.muon_ranks", nodes=nodes).result()
    assert run.code == 0, run.err
    told = json.loads(run.out.splitlines()[-1])
    for dtype in ("torch.float32", "torch.bfloat16"):
        found = told[dtype]
        for what in ("skipped", "learnt", "as by itself", "state", "continued", "alike"):
            assert found[what], (dtype, what)
        # Of the third rank on a node nothing is asked where another node has two.
        owners, computed, at = min(nodes), found["computed"], 0
        for ranks in nodes:
            own = computed[at : at + ranks]
            assert sum(own) == found["all"]
            assert own[owners:] == [0] * (ranks - owners)
            assert max(own[:owners]) - min(own[:owners]) <= 15  # five steps of three shapes
            at += ranks
    assert told["trial"]["agreed"]
    assert told["trial"]["again"]
    owners = min(nodes)
    for at, count in enumerate(told["measured"]["computed"]):  # as each rank would in the training, not all by itself
        assert count < told["measured"]["all"] * (0.75 if owners > 1 else 1), at
    assert len(set(told["measured"]["steps"])) == 1  # as many on each rank, however slow it is
    assert told["trial"]["why"].startswith(SHARED)


def test_a_rank_without_others_on_its_node_shares_nothing() -> None:
    muon = Muon([{"params": [torch.zeros(2, 2, requires_grad=True)]}], 0.02, torch.float32)
    for nodes in ((), (0, 1), (0, 0, 2)):
        group = Group(
            place=RankInfo(world_size=max(1, len(nodes))), backend="gloo", device=torch.device("cpu"), nodes=nodes
        )
        assert share_if_faster(muon, group) == (False, "")
    assert muon.start == muon.start_all


def test_the_iteration_is_not_compiled_for_a_cpu() -> None:
    muon = Muon([{"params": [torch.zeros(2, 2, requires_grad=True)]}], 0.02, torch.float32)
    iteration = muon.iteration
    assert compile_if_faster(muon, Group(place=RankInfo(), backend="none", device=torch.device("cpu"))) == ""
    assert muon.iteration is iteration


def test_who_has_least_to_do_takes_what_is_left_over() -> None:
    load = [0.0, 0.0, 0.0]
    assert _even(7, load, 10.0) == [3, 2, 2]
    assert _even(5, load, 1.0) == [1, 2, 2]
    assert load == [31.0, 22.0, 22.0]


def test_a_run_that_shares_continues_as_it_began(forked: Callable[..., Any], data_dir: Path, tmp_path: Path) -> None:
    def words(folder: str, steps: int, *options: str) -> list[str]:
        return [
            "gpt2", "train", *MODEL, "--data-dir", str(data_dir), "--run-dir", str(tmp_path / folder), "--precision",
            "fp32", "--num-workers", "0", "--no-compile", "--eval-every", "0", "--shares", "equal", "--log-every", "1",
            "--optimizer", "muon", "--max-steps", str(steps), *options,
        ]  # fmt: skip

    flat = ("--sync", "fp32", "--schedule", "constant")
    whole = forked(2, *words("whole", 6, *flat)).result()
    first = forked(2, *words("parts", 3, *flat)).result()
    again = forked(2, *words("parts", 6, *flat)).result()
    local = forked(2, *words("local", 2, "--sync", "diloco", "--sync-every", "2")).result()
    told = forked(2, *words("forecast", 1, "--sync", "auto", "--forecast")).result()
    before, measured, _ = told.out.partition('"event": "measured"')
    assert measured
    assert SHARED in before  # so that the forecast counts the step as it will be
    for run in (whole, first, again, local, told):
        assert run.code == 0, run.err
    assert SHARED in first.out + first.err
    assert "shared by the ranks of a node: as decided before" in again.out + again.err
    assert SHARED not in local.out + local.err
    assert {**first.losses(), **again.losses()} == whole.losses()
