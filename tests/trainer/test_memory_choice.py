"""`--memory auto`: the fastest settings that fit, of those that the user leaves open."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contract.cost_model.memory import MIB, TransformerTraining
from tests.trainer.memory_ranks import CPU, Bounded, choose
from trainer.config import OptionValue, RankInfo, TrainOptions
from trainer.engine.autotune.memory import ForecastTrials, open_choices
from trainer.engine.autotune.memory_settings import (
    RECOMPUTE_COST,
    MemoryChoices,
    MemorySettings,
    OptimizerSettings,
    first_that_fits,
    optimizers,
)
from trainer.engine.group import Group
from trainer.errors import TooLittleMemoryError

PLACE = RankInfo()
ALONE = Group(place=PLACE, backend="none", device=CPU)
CHOICES = MemoryChoices(
    recompute=(0, "selective", 2, 1),
    loss_chunk=("auto", 1024, 256),
    micro_batch=(8, 4, 2, 1),
    recompute_cost=RECOMPUTE_COST["gpu"],
)
BY_USER = "command line"


def choice(tmp_path: Path, limit: float, **given: Any) -> dict[str, Any]:
    options = TrainOptions(**{"run_dir": tmp_path, "memory": "auto", "sync": "fp32", **given})
    return choose(Bounded(limit), options, PLACE, ALONE)


def test_the_fastest_comes_first_and_the_least_memory_is_among_them() -> None:
    ordered = CHOICES.by_time(0.5)
    assert ordered[0] == MemorySettings(recompute=0, loss_chunk="auto", micro_batch=8)
    assert len(set(ordered)) == 4 * 3 * 4
    assert CHOICES.least == MemorySettings(recompute=1, loss_chunk=256, micro_batch=1)
    assert all(CHOICES.needs_as_much(one, CHOICES.least) for one in ordered)


def test_where_passes_are_dear_blocks_are_computed_again_before_passes_get_smaller() -> None:
    def first_smaller(pass_samples: float) -> MemorySettings:
        return next(one for one in CHOICES.by_time(pass_samples) if one.micro_batch < 8 or one.recompute)

    assert first_smaller(0.1).recompute == 0
    assert first_smaller(10.0).micro_batch == 8


@pytest.mark.parametrize("limit", range(1, 42))
def test_skipped_combinations_would_not_have_fitted(limit: int) -> None:
    tried = []

    def needed(one: MemorySettings) -> int:
        of_a_sample = {0: 4, "selective": 3, 2: 2, 1: 1}[one.recompute]  # type: ignore[index]
        return of_a_sample * one.micro_batch + {"auto": 9, 1024: 3, 256: 1}[one.loss_chunk]  # type: ignore[index]

    def fits(one: MemorySettings) -> bool:
        tried.append(one)
        return needed(one) <= limit

    found, failed = first_that_fits(CHOICES, 0.5, fits)
    assert found == next((one for one in CHOICES.by_time(0.5) if needed(one) <= limit), None)
    assert failed == tried[: len(tried) - bool(found)]


@pytest.mark.parametrize(
    ("limit", "recompute", "chunk", "state", "offload"),
    [
        (80, [0, 0, 0, 0], "auto", "fp32", False),
        (72, ["selective"] * 4, "auto", "fp32", False),
        (52, [1, 0, 1, 0], "auto", "fp32", False),
        (16, [1, 1, 1, 1], 64, "bf16", False),
        (9, [1, 1, 1, 1], 16, "int8", True),
    ],
)
def test_less_memory_takes_the_cheaper_means_first_and_the_optimizers_last(
    limit: float, recompute: list[Any], chunk: int | str, state: str, offload: bool, tmp_path: Path
) -> None:
    found = choice(tmp_path, limit, micro_batch_size=4)
    assert (found["recompute"], found["chunk"], found["state"], found["offload"]) == (recompute, chunk, state, offload)
    assert found["micro_batch"] == 4
    assert f"optimizer state {state}" in found["said"]
    assert len(found["said"].splitlines()) == 1
    assert ("too much are" in found["said"]) == (limit < 80)


def test_the_largest_micro_batch_is_found_where_no_other_setting_is_open(tmp_path: Path) -> None:
    options = TrainOptions(run_dir=tmp_path, memory="auto", sync="fp32", optimizer_state="bf16")
    found = choose(Bounded(31, blocks=False), options, PLACE, ALONE)
    assert found["micro_batch"] == 4, "4 of 8 samples: 16 + 8 + 4, and 5 are no power of two"
    assert "nothing else to choose for this model" in found["said"]
    assert (found["state"], found["offload"]) == ("bf16", False)


def test_memory_that_holds_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TooLittleMemoryError, match="rank 0: not even one sample"):
        choice(tmp_path, 2)


def test_what_the_user_has_given_stays(tmp_path: Path) -> None:
    given = {
        "gradient_checkpointing": OptionValue(0, BY_USER), "loss_chunk": OptionValue("auto", BY_USER),
        "optimizer_state": OptionValue("fp32", BY_USER),
    }  # fmt: skip
    found = choice(tmp_path, 33, chosen=given)
    assert found["recompute"] == [0] * 4
    assert (found["chunk"], found["state"], found["offload"]) == ("auto", "fp32", False)
    assert found["micro_batch"] == 1
    offloaded = choice(tmp_path / "other", 25, chosen=given)
    assert (offloaded["state"], offloaded["offload"]) == ("fp32", True)
    with pytest.raises(TooLittleMemoryError):
        choice(tmp_path / "third", 25, chosen={**given, "optimizer_offload": OptionValue(False, BY_USER)})


def test_a_workloads_own_default_is_no_wish_of_the_user() -> None:
    by_preset = TrainOptions(chosen={"gradient_checkpointing": OptionValue(0, "the workload's default")})
    assert open_choices(Bounded(1), by_preset, 8, on_gpu=True).recompute == (0, "selective", 2, 1)
    assert open_choices(Bounded(1), by_preset, 23, on_gpu=True).micro_batch == (23, 16, 8, 4, 2, 1)
    assert open_choices(Bounded(1), by_preset, 23, on_gpu=False).micro_batch == (8, 4, 2, 1)


def test_frozen_blocks_are_left_alone(tmp_path: Path) -> None:
    workload = Bounded(9 + 4 * 3.5 + 4)
    assert isinstance(workload.model, nn.Sequential)
    workload.model[0].requires_grad_(False)
    options = TrainOptions(run_dir=tmp_path, memory="auto", sync="fp32", micro_batch_size=4)
    assert choose(workload, options, PLACE, ALONE)["recompute"][0] == 0


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_each_format_of_the_optimizer_needs_less_than_the_one_before(name: str) -> None:
    found = optimizers(TrainOptions(optimizer=name))
    assert [one.state for one in found[:3]] == ["fp32", "bf16", "int8"]
    assert [one.offload for one in found] == [False, False, False] + [True] * (name != "muon")


@pytest.mark.slow
def test_a_resumed_run_keeps_the_optimizers_format(tmp_path: Path) -> None:
    assert choice(tmp_path, 12, micro_batch_size=4)["state"] == "int8"
    assert choice(tmp_path, 100, micro_batch_size=4)["state"] == "fp32", "nothing has been trained with it"
    assert choice(tmp_path, 12, micro_batch_size=4)["state"] == "int8"
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    again = choice(tmp_path, 100, micro_batch_size=4)
    assert "optimizer state int8 (as until now)" in again["said"]
    assert "optimizer-state int8 (--memory auto)" in again["options"]
    assert (again["state"], again["recompute"]) == ("int8", [0] * 4)
    assert choice(tmp_path, 100, micro_batch_size=4, resume="never")["state"] == "fp32"


def test_ranks_choose_for_themselves_but_the_optimizer_alike(forked: Any, tmp_path: Path) -> None:
    options = {"run_dir": str(tmp_path), "memory": "auto", "sync": "fp32", "micro_batch_size": 4}
    run = forked(2, json.dumps(options), json.dumps([80, 12]), module="tests.trainer.memory_ranks").result()
    assert run.code == 0, run.err
    large, small = chosen(run.out)
    assert (large["state"], small["state"]) == ("int8", "int8")
    assert (large["recompute"], large["chunk"]) == ([0] * 4, "auto")
    assert (small["recompute"], small["chunk"]) == ([1] * 4, 16)
    assert "optimizer state int8 (rank 1 needs it)" in large["said"]
    assert "rank 1: checkpointing 1, loss chunk 16, micro-batch 4" in large["said"]
    assert not small["said"]


def test_a_rank_with_too_little_memory_ends_all(forked: Any, tmp_path: Path) -> None:
    options = {"run_dir": str(tmp_path), "memory": "auto", "sync": "fp32", "micro_batch_size": 4}
    run = forked(2, json.dumps(options), json.dumps([80, 2]), module="tests.trainer.memory_ranks").result()
    assert run.code == 0, run.err
    assert all(one["refused"].startswith("rank 1: not even one sample") for one in chosen(run.out))


def chosen(out: str) -> list[dict[str, Any]]:
    found = [json.loads(line.removeprefix("chosen ")) for line in out.splitlines() if line.startswith("chosen ")]
    return sorted(found, key=lambda one: int(one["rank"]))


TRAINING = TransformerTraining(
    parameters=124_000_000, layers=12, width=768, seq_len=1024, vocab_size=50257, micro_batch=4, passes=1,
    loss_chunk=1024, optimizer_values=248_000_000,
)  # fmt: skip
ON_CPU = MemoryChoices(
    recompute=(0, 2, 1), loss_chunk=("auto", 1024, 256), micro_batch=(4, 2, 1), recompute_cost=RECOMPUTE_COST["cpu"]
)


def test_on_a_cpu_the_forecast_decides_and_smaller_passes_come_before_checkpointing() -> None:
    fp32 = OptimizerSettings(state="fp32", offload=False)

    def found(limit_mib: int) -> MemorySettings | None:
        trials = ForecastTrials(
            training=TRAINING, ranks=1, world_size=1, first=True, share=4, limit_bytes=limit_mib * MIB
        )
        settings, failed = first_that_fits(
            ON_CPU, trials.pass_samples(ON_CPU.least, fp32), lambda one: trials.fits(one, fp32)
        )
        if settings:
            assert trials.needed_mib(settings, fp32) <= limit_mib
        assert all(trials.needed_mib(one, fp32) > limit_mib for one in failed)
        return settings

    sizes = range(2000, 9000, 100)
    chosen_by_size = [one for limit in sizes if (one := found(limit))]
    assert found(1000) is None
    assert chosen_by_size[0].recompute == 1
    assert chosen_by_size[-1] == MemorySettings(recompute=0, loss_chunk="auto", micro_batch=4)
    order = ON_CPU.by_time(0.15)
    assert all(order.index(after) <= order.index(one) for one, after in pairwise(chosen_by_size))
    again = [one for one in chosen_by_size if one.recompute == 0]
    assert {one.micro_batch for one in again} == {4, 2, 1}


def test_on_a_cpu_fewer_bits_of_the_optimizer_count() -> None:
    trials = ForecastTrials(training=TRAINING, ranks=1, world_size=1, first=True, share=4, limit_bytes=1)
    needed = [trials.needed_mib(ON_CPU.least, one) for one in optimizers(TrainOptions())]
    assert needed[0] > needed[1] > needed[2] == needed[3]


def test_a_training_with_memory_to_spare_is_the_same(train: Any, tmp_path: Path) -> None:
    options = ("--max-steps", "3", "--checkpoint-every", "0")
    usual, auto = train(tmp_path / "usual", *options), train(tmp_path / "auto", *options, "--memory", "auto")
    assert (usual.code, auto.code) == (0, 0), auto.err
    assert auto.losses() == usual.losses()
    (line,) = (line for line in auto.out.splitlines() + auto.err.splitlines() if "memory auto: " in line)
    assert "checkpointing 0, loss chunk auto, micro-batch 4, optimizer state fp32" in line
    assert "the fastest there is" in line


def test_a_model_without_a_forecast_chooses_the_micro_batch_alone(observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, memory="auto", max_steps=2, batch_size=4)
    assert run.code == 0, run.err
    assert "memory auto: nothing to choose but the micro-batch: no forecast for observed on a CPU" in run.out + run.err
    assert {event["micro_batch"] for event in run.events("step")} <= {1, 2, 4}


def test_two_ranks_train_as_without_it(forked: Any, train_command: Any, tmp_path: Path) -> None:
    options = ("--max-steps", "3", "--checkpoint-every", "0", "--global-batch-size", "16")
    usual = forked(2, *train_command(tmp_path / "usual"), *options).result()
    auto = forked(2, *train_command(tmp_path / "auto"), *options, "--memory", "auto").result()
    assert (usual.code, auto.code) == (0, 0), auto.err
    assert auto.losses() == pytest.approx(usual.losses(), rel=1e-6)


def test_a_loss_in_other_chunks_is_the_same() -> None:
    from trainer.models.gpt2 import GPT2, Gpt2Shape

    torch.manual_seed(0)
    model = GPT2(Gpt2Shape(layers=1, heads=2, width=32, seq_len=16, vocab_size=101))
    tokens = torch.randint(101, (4, 17))
    whole = model(tokens[:, :-1], tokens[:, 1:])
    model.set_loss_chunk(16)
    assert model.computation.loss_chunk == 16
    assert torch.allclose(whole, model(tokens[:, :-1], tokens[:, 1:]))
