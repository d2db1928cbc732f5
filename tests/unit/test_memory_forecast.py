"""The forecast of a training's memory, and what a launch does where it does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.cost_model.memory import TransformerTraining, forecast_memory, smaller, words_of
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.inventory import Limits
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from tests import lan
from tests.unit.conftest import THREE, Orch
from trainer.data.prepared_folder import TOKENS

SMALL = TransformerTraining(
    parameters=98_428_416, layers=12, width=768, seq_len=1024, vocab_size=16384, micro_batch=4, passes=1,
    loss_chunk=1024, optimizer_values=196_856_832,
)  # fmt: skip
"""The default workload, with the vocabulary that `orch prepare` makes."""

trainings = st.builds(
    TransformerTraining,
    parameters=st.integers(1, 10**9),
    layers=st.integers(1, 48),
    width=st.integers(1, 4096),
    seq_len=st.integers(1, 4096),
    vocab_size=st.integers(256, 200_000),
    micro_batch=st.integers(1, 64),
    passes=st.integers(1, 8),
    loss_chunk=st.sampled_from([0, 1024]),
    optimizer_values=st.integers(0, 2 * 10**9),
    optimizer_state=st.sampled_from(["fp32", "bf16", "int8"]),
    gradient_checkpointing=st.sampled_from([0, 1, 2, 3, "selective"]),
    checkpoint_async=st.booleans(),
    sync=st.sampled_from(["auto", "fp32", "int8"]),
    fixed=st.sets(st.sampled_from(["micro_batch_size", "checkpoint_async", "gradient_checkpointing"])).map(tuple),
)


def plan(memory: str, sizes: TransformerTraining | None = SMALL, names: tuple[str, ...] = lan.NAMES) -> Plan:
    """A launch of the default workload on machines with this limit."""
    nodes = tuple(lan.spec(name, limits=Limits.model_validate({"memory": memory})) for name in names)
    request = LaunchRequest(project="orch", nodes=nodes, sizes=sizes)
    return plan_launch(request, {name: lan.facts(name) for name in names}, lan.IDENTITY)


@given(trainings, st.integers(1, 4), st.integers(1, 64), st.booleans())
def test_each_step_takes_less_memory_or_as_much(
    training: TransformerTraining, ranks: int, others: int, first: bool
) -> None:
    needs = [
        forecast_memory(one, ranks=ranks, world_size=ranks + others, first=first).needed_mib
        for one in smaller(training)
    ]
    assert needs == sorted(needs, reverse=True)


@given(trainings)
def test_what_the_user_has_given_is_not_changed(training: TransformerTraining) -> None:
    *_, least = smaller(training)
    changed = [
        name
        for name, field in (
            ("micro_batch_size", "micro_batch"),
            ("checkpoint_async", "checkpoint_async"),
            ("gradient_checkpointing", "gradient_checkpointing"),
        )
        if getattr(least, field) != getattr(training, field)
    ]
    assert not set(changed) & set(training.fixed)
    assert least.micro_batch * least.passes <= training.micro_batch * training.passes


def test_the_copy_for_a_checkpoint_counts_on_the_node_that_writes_it() -> None:
    first, other = (forecast_memory(SMALL, ranks=1, world_size=5, first=first) for first in (True, False))
    copied = first.parts["checkpoint copy"] - other.parts["checkpoint copy"]
    assert copied == pytest.approx(3 * first.parts["weights"], abs=2)


@pytest.mark.parametrize(("how", "bytes_per_weight"), [("fp32", 8), ("bf16", 4), ("int8", 2 + 2 / 256)])
def test_moments_in_fewer_bits_take_less_and_so_does_their_copy(
    how: Literal["fp32", "bf16", "int8"], bytes_per_weight: float
) -> None:
    found = forecast_memory(replace(SMALL, optimizer_state=how), ranks=1, world_size=1, first=True).parts
    weights = SMALL.parameters / 2**20
    assert found["optimizer"] == pytest.approx(weights * bytes_per_weight, abs=1)
    assert found["checkpoint copy"] == pytest.approx(weights * (4 + bytes_per_weight), abs=1)


def test_ranks_of_a_node_add_up() -> None:
    one, four = (forecast_memory(SMALL, ranks=ranks, world_size=8, first=False) for ranks in (1, 4))
    assert four.parts["activations"] == pytest.approx(4 * one.parts["activations"], abs=4)
    assert four.parts["weights"] == pytest.approx(4 * one.parts["weights"], abs=4)


def test_where_it_fits_nothing_is_added() -> None:
    planned = plan("32g")
    assert planned.command == ("gpt2",)
    assert planned.notes == ()


def test_the_default_workload_fits_into_nodes_with_four_gigabytes() -> None:
    planned = plan("4g")
    added = ("--micro-batch-size", "1", "--no-checkpoint-async", "--gradient-checkpointing", "2")
    assert planned.command == ("gpt2", *added)
    (note,) = planned.notes
    assert note.startswith(
        f"{' '.join(added)} is added, so that the training fits into alpha's memory limit of 4096 MiB"
    )
    assert "the samples of a step stay the same" in note
    assert all(part.container.command[-5:] == added for part in planned.nodes)


def test_no_more_is_added_than_has_to_be() -> None:
    assert plan("7g").command == ("gpt2", "--micro-batch-size", "2")
    assert plan("6g").command == ("gpt2", "--micro-batch-size", "1")
    assert plan("5g").command == ("gpt2", "--micro-batch-size", "1", "--no-checkpoint-async")


def test_what_fits_if_the_forecast_holds_is_not_refused() -> None:
    assert plan("3500m").command == plan("3800m").command
    assert plan("3500m").command[-1] == "--gradient-checkpointing"
    with pytest.raises(PreflightError):
        plan("3300m")


def test_the_smallest_node_decides() -> None:
    nodes = (lan.spec("alpha"), lan.spec("beta", limits=Limits.model_validate({"memory": "5g"})))
    request = LaunchRequest(project="orch", nodes=nodes, sizes=SMALL)
    planned = plan_launch(request, {node.name: lan.facts(node.name) for node in nodes}, lan.IDENTITY)
    assert "--micro-batch-size" in planned.command
    assert any("fits into beta's memory limit of 5120 MiB" in note for note in planned.notes)


def test_what_does_not_fit_is_refused_with_its_parts() -> None:
    with pytest.raises(PreflightError) as refused:
        plan("1g")
    assert refused.value.node == "alpha"
    assert "would exceed its memory limit of 1024 MiB: the forecast is" in str(refused.value)
    for part in ("weights", "gradients", "optimizer", "activations", "processes"):
        assert f"{part} " in str(refused.value)
    assert "in the inventory: limits: {memory: " in str(refused.value.hint)


def test_a_micro_batch_of_the_users_own_is_named_as_a_way_out() -> None:
    with pytest.raises(PreflightError) as refused:
        plan("4g", replace(SMALL, fixed=("micro_batch_size", "gradient_checkpointing")))
    assert "with micro-batches of 4" in str(refused.value)
    assert "leave out --micro-batch-size" in str(refused.value.hint)


def test_without_sizes_there_is_no_forecast() -> None:
    assert plan("1g", sizes=None).command == ("gpt2",)


@pytest.mark.parametrize("other", ["gpu", "process", "assumed"])
def test_nodes_whose_limit_ends_no_rank_are_not_judged(other: str) -> None:
    spec = lan.spec(
        "alpha", limits=Limits.model_validate({"memory": "1g"}), engine="process" if other == "process" else "docker"
    )
    facts = lan.facts("alpha", gpus=lan.gpus(other == "gpu"), assumed=other == "assumed")
    request = LaunchRequest(project="orch", nodes=(spec,), sizes=SMALL)
    assert plan_launch(request, {"alpha": facts}, lan.IDENTITY).command == ("gpt2",)


def test_words_name_what_differs() -> None:
    chosen = replace(SMALL, micro_batch=2, gradient_checkpointing=1)
    assert words_of(SMALL, chosen) == ("--micro-batch-size", "2", "--gradient-checkpointing")
    assert words_of(SMALL, SMALL) == ()


def test_a_launch_reads_the_sizes_from_its_words_and_data(orch: Orch) -> None:
    shards = {"shards": [{"tokens": 5000}]}
    manifest = {"kind": "tokens", "format": TOKENS.format, "vocab_size": 16384}
    Path("Data").mkdir()
    Path("Data/manifest.json").write_text(json.dumps({**manifest, "splits": {"train": shards, "validation": shards}}))
    inventory = Path("inventory.yaml")
    inventory.write_text(f"defaults: {{limits: {{memory: 6g}}}}\n{inventory.read_text()}")
    shown = orch("launch", "--dry-run", "--", "gpt2", "--epochs", "1", on=lan.lan(*THREE)).out
    assert "# note: --micro-batch-size 1 is added, so that the training fits into alpha's memory limit" in shown
    assert "-m trainer gpt2 --epochs 1 --micro-batch-size 1\n" in shown
    refused = orch("launch", "-y", "--", "gpt2", "--preset", "350m", on=lan.lan(*THREE))
    assert refused.code == 4
    assert "alpha: the training would exceed its memory limit of 6144 MiB: the forecast is" in refused.err
    assert "in the inventory: limits: {memory: " in refused.err
