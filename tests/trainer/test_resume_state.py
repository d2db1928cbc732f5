"""The state that a resume gives to each rank, whichever weights had a gradient (resumed_ranks.py is what ranks run)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.checkpoint import CheckpointManifest, StartPoint
from tests.trainer.observed import same, state
from tests.trainer.resumed_ranks import MODELS, OPTIMIZERS, train_all
from trainer import checkpoint_folder
from trainer.checkpoint_folder import Checkpoint
from trainer.config import RankInfo, TrainOptions
from trainer.engine.checkpoints.resume import choose
from trainer.engine.group import Group

ALONE = Group(place=RankInfo(), backend="none", device=torch.device("cpu"))


def test_one_two_three_and_one_rank_continue_as_if_undisturbed(forked: Callable[..., Any], tmp_path: Path) -> None:
    """Bit by bit. The first checkpoint, after one step, holds the state of some weights only."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_all(whole, ALONE, 9)
    train_all(parts, ALONE, 1)
    for ranks, until in ((2, 3), (3, 6)):
        run = forked(ranks, str(parts), str(until), module="tests.trainer.resumed_ranks").result()
        assert run.code == 0, run.err
        data = sorted((json.loads(line) for line in run.out.splitlines()), key=lambda one: one["rank"])
        assert [one["differing"] for one in data] == [[]] * ranks
        last = ranks - 1
        named = f"rank {last} of {ranks} (alpha) has 6 other tensors than rank 0:\n"
        assert data[last]["refused"].startswith(
            f"{named}  first.weight: [8, 8] float32 on rank 0, [9, 8] float32 here\n"
        )
        assert "\n  exp_avg of first.bias: [8] float32 on rank 0, [9] float32 here" in data[last]["refused"]
        other = f"rank {last} has other tensors than rank 0: see the message there"
        assert [one["refused"] for one in data[:last]] == [other] * last
    assert not train_all(parts, ALONE, 9)
    for kind in MODELS:
        for name in OPTIMIZERS:
            found, expected = state(parts / kind / name, 9), state(whole / kind / name, 9)
            assert same(found["model"], expected["model"]), (kind, name)
            assert same(found["optimizer"]["state"], expected["optimizer"]["state"]), (kind, name)


@pytest.mark.parametrize(
    ("words", "own", "step", "left"),
    [
        ("auto", False, 300, [300, 200]),
        ("auto", True, 700, [700, 600, 300, 200]),
        ("never", False, None, []),
        ("never", True, 700, [700, 600, 300, 200]),
        ("OLDER", False, 200, [200]),
    ],
)
def test_words_of_the_user_and_then_the_record_choose_the_checkpoint(
    tmp_path: Path, words: str, own: bool, step: int | None, left: list[int]
) -> None:
    """Earlier attempts of one run have its id too, so that the id alone does not identify its own checkpoints."""
    root = tmp_path / "checkpoints"

    def save(step: int, attempt: int) -> Checkpoint:
        manifest = CheckpointManifest(step=step, run_id="r1", attempt=attempt)
        return checkpoint_folder.publish(checkpoint_folder.write(root, manifest, lambda file: torch.save({}, file), {}))

    saved = {number: save(number, 0) for number in (200, 300, 600)}
    if own:
        save(700, 1)
    place = RankInfo(run_id="r1", attempt=1, resume_from=StartPoint(step=300, sha256=saved[300].sha256))
    resume = words if words != "OLDER" else str(saved[200].path)
    chosen = choose(TrainOptions(run_dir=tmp_path, resume=resume), place, print)
    assert (chosen and chosen.step) == step
    assert checkpoint_folder.steps(root) == left
