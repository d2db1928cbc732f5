"""Many ranks under real torchrun, gloo on loopback: the same training as one process."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch

from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.engine.process_group import join
from trainer.engine.reporting.events import Events
from trainer.errors import ConfigurationError, TrainerError
from trainer.tools import test_ddp

COMMON = ("--batch-size", "2", "--eval-every", "0", "--checkpoint-every", "0")


def test_five_ranks_with_an_uneven_batch_equal_one_process(forked, train, train_command, tmp_path: Path) -> None:
    # 13 sequences: shares of 2 and 3, and so 1 or 2 forward passes a rank.
    options = (*COMMON[:2], "--global-batch-size", "13", "--max-steps", "6", "--eval-every", "6")
    five = forked(5, *train_command(tmp_path / "five"), *options).result()
    assert five.code == 0, five.err
    one = train(tmp_path / "one", *options)
    assert sorted(five.losses()) == [1, 2, 3, 4, 5, 6]
    assert five.losses() == pytest.approx(one.losses(), rel=1e-5)
    (ours,), (theirs,) = five.events("evaluation"), one.events("evaluation")
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)

    assert sorted(event["rank"] for event in five.events("joined")) == [0, 1, 2, 3, 4]
    assert {event["world_size"] for event in five.events("joined")} == {5}
    assert {event["rank"] for event in five.events("step")} == {0}
    assert {event["rank"] for event in five.events("checkpoint")} == {0}
    assert sorted(event["rank"] for event in five.events("done")) == [0, 1, 2, 3, 4]
    assert "🌐 DISTRIBUTED MODE: rank 0 of 5 (alpha): cpu, 1 thread, float32, gloo" in five.out
    assert five.out.count("step 6/6") == 1


def test_two_ranks_stopped_and_resumed_equal_two_ranks_undisturbed(
    torchrun, forked, train_command, tmp_path: Path
) -> None:
    options = (*COMMON, "--max-steps", "150", "--dropout", "0.1")
    stopped_dir = tmp_path / "stopped"
    run = torchrun(2, *train_command(stopped_dir), *options)
    for line in run.lines():
        if '"event": "step"' in line and '"step": 5,' in line:
            run.process.send_signal(signal.SIGTERM)
            break
    stopped = run.result()
    at = {event["step"] for event in stopped.events("stopped")}
    assert [event["rank"] for event in stopped.events("stopped")] in ([0, 1], [1, 0])
    assert len(at) == 1
    step = at.pop()
    assert 5 <= step < 150
    assert json.loads((stopped_dir / "STOPPED").read_text())["step"] == step
    assert stopped.events("checkpoint")[-1] == stopped.events("checkpoint")[-1] | {
        "step": step,
        "verified": True,
    }
    assert not stopped.events("failed")

    resumed = forked(2, *train_command(stopped_dir), *options).result()
    assert resumed.code == 0, resumed.err
    assert not (stopped_dir / "STOPPED").exists()
    assert {event["step"] for event in resumed.events("resumed")} == {step}
    assert min(resumed.losses()) == step + 1

    undisturbed = forked(2, *train_command(tmp_path / "undisturbed"), *options).result()
    assert stopped.losses() | resumed.losses() == undisturbed.losses()


def test_with_batch_norm_all_ranks_evaluate_what_the_checkpoint_keeps(observe, tmp_path: Path) -> None:
    options = {"batch_size": 4, "max_steps": 3, "eval_every": 3, "lr": 0.1, "warmup_steps": 0}
    wishes = {"batch_norm": True, "validation_samples": 23}
    two = observe(tmp_path, 2, wishes, **options)
    assert two.code == 0, two.err
    one = observe(tmp_path, 1, wishes, **options)
    assert one.events("resumed")[0]["step"] == 3
    (ours,), (theirs,) = two.events("evaluation"), one.events("evaluation")
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_a_rank_without_data_ends_the_others_too(forked, train_command, tmp_path: Path) -> None:
    refused = forked(2, *train_command(tmp_path), "--data-dir", str(tmp_path / "nothing")).result()
    assert refused.code != 0
    assert "no prepared data here" in refused.err
    assert {event["error"] for event in refused.events("failed")} == {"ConfigurationError"}


def test_connectivity_check(forked) -> None:
    good = forked(2, "test-ddp", "--backend", "auto").result()
    assert good.code == 0, good.err
    lines = [line for line in good.out.splitlines() if line.startswith("rank ")]
    assert len(lines) == 2
    for line in lines:
        known = r"all_reduce 3 \(expected 3\) OK, broadcast OK, all_gather OK, all_to_all OK, .*barrier OK"
        assert re.search(rf"rank \d of 2 \(alpha\): backend gloo, cpu, {known}, [\d.]+ ms", line), line


class DeafGroup(Group):
    """Ranks that do not hear each other: every sum is one's own number."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        pass


def test_a_wrong_sum_names_the_rank(capsys) -> None:
    group = DeafGroup(place=RankInfo(rank=1, world_size=2), backend="gloo", device=torch.device("cpu"))
    with pytest.raises(TrainerError, match="rank 1 of 2: all_reduce gave 2, expected 3"):
        test_ddp.judge(group, Events(group.place))
    assert "WRONG" in capsys.readouterr().out


def test_nccl_without_a_gpu_is_refused_before_waiting_for_anybody() -> None:
    place = RankInfo(rank=0, world_size=2)
    with pytest.raises(ConfigurationError, match="no GPU"), join(place, torch.device("cpu"), "nccl"):
        pass
