"""Measurements before the first step, which leave no trace in what is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from trainer.config import RankInfo, TrainOptions
from trainer.engine.autotune.measure import codec_s, links, optimizer_s, rates_of_nodes
from trainer.engine.group import Group
from trainer.engine.hardware import compiling
from trainer.engine.optimization.optimizer import build_optimizer
from trainer.engine.sync.buckets import LARGEST, SMALLEST, Bucket, before_the_last, by_backward
from trainer.engine.sync.methods import ladder

FIVE = Group(place=RankInfo(world_size=5), backend="gloo", device=torch.device("cpu"))


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 8))


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_timing_the_optimizer_moves_no_weight_and_leaves_no_memory(name: str) -> None:
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    options = TrainOptions(optimizer=name, lr=0.1, weight_decay=0.5)
    optimizer = build_optimizer(model, None, options, torch.float32)
    alone = Group(place=RankInfo(), backend="none", device=torch.device("cpu"))
    assert optimizer_s(model, optimizer, alone) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert {group["lr"] for group in optimizer.param_groups} == {0.1}
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("nodes", [(), (0, 0, 2, 2, 2), (0, 1, 1, 1, 1)])
def test_what_packing_costs_is_known_for_every_way(nodes: tuple[int, ...]) -> None:
    model = network()
    like = Bucket(list(model.parameters()))
    for rank in (0, 4):
        group = replace(FIVE, place=RankInfo(rank=rank, world_size=5), nodes=nodes)
        cost = {rung.name: codec_s(rung, like, group) for rung in ladder(TrainOptions(), model, nodes)}
    if not nodes:
        assert cost.pop("fp32") == 0  # DDP's own, and part of what its all-reduce takes
    assert all(seconds > 0 for seconds in cost.values()), cost
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bytes_of_a_parameter_follow_from_the_way() -> None:
    sent = {rung.name: rung.bytes_per_parameter for rung in ladder(TrainOptions(sync_rank=4), network())}
    assert sent["fp32"] == 4
    assert sent["fp16"] == 2
    assert sent["int8"] == pytest.approx(1 + 2 / 128)
    assert sent["int4"] == pytest.approx(1 / 2 + 2 / 64)
    assert sent["int4+8"] == pytest.approx((sent["int8"] + sent["int4"]) / 2)
    assert sent["int2"] == pytest.approx(1 / 4 + 2 / 128)
    thin = 4 * (48 + 96) + 4 * (96 + 64) + 4 * (64 + 8) + 96 + 64 + 8
    assert sent["powersgd"] == pytest.approx(sent["int8"] * thin / sum(p.numel() for p in network().parameters()))
    assert sent["local"] == sent["int8"]


@pytest.mark.parametrize(("layers", "width", "buckets"), [(2, 16, 1), (16, 256, 8), (6, 4096, 6)])
def test_buckets_fit_the_model(layers: int, width: int, buckets: int) -> None:
    """A small model is not cut; a middling one into enough to begin early; a large one into no larger than are good."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    cut = by_backward(model.parameters())
    assert len(cut) == buckets
    assert cut[0].parameters[0] is model[-1].weight
    assert all(bucket.count <= max(LARGEST, width**2) for bucket in cut)
    assert len(cut) == 1 or all(bucket.count >= SMALLEST for bucket in cut)


def test_what_the_last_bucket_holds_cannot_hide() -> None:
    """A tied embedding is most of a small language model, and its gradient is whole when the backward pass ends."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(3000, 100), nn.Linear(100, 700, bias=False), nn.Linear(700, 900, bias=False))
    overlap = {rung.name: rung.overlap for rung in ladder(TrainOptions(), model)}
    assert overlap["int8"] == pytest.approx(0.7)
    assert overlap["int4+8"] == overlap["int8"]
    assert overlap["powersgd"] == pytest.approx(1 - 3100 / (3100 + 800 + 1600))  # of what its factors send
    assert overlap["local"] == overlap["diloco"] == 0
    assert before_the_last([[]], [5]) == 0


@pytest.mark.parametrize(
    ("model", "eager", "compiled"),
    [
        (
            nn.Sequential(nn.Embedding(2000, 100), nn.ModuleList(nn.Linear(400, 500) for _ in range(4))),
            {"fp32": 0.4, "int8": 0.8, "int4": 0.8},
            {"fp32": 0.4, "int8": 0.6, "int4": 0.6},
        ),
        (
            nn.Sequential(nn.Linear(400, 1000), nn.Linear(1000, 300)),
            {"fp32": 0.43, "int8": 0.43, "int4": 0.43},
            {"fp32": 0, "int8": 0, "int4": 0},
        ),
    ],
    ids=["by blocks", "whole"],
)
def test_gradients_of_what_is_compiled_together_come_together(
    model: nn.Module, eager: dict[str, float], compiled: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block's buckets are full when its backward pass is done; of a whole model, when the backward pass is."""
    monkeypatch.setattr(compiling, "missing_requirement", lambda device: "")

    def overlaps() -> dict[str, float]:
        return {rung.name: rung.overlap for rung in ladder(TrainOptions(), model) if rung.name in eager}

    assert overlaps() == pytest.approx(eager, abs=0.01)
    compiling.compile_in_place(model, torch.device("cpu"), backend="eager")
    assert overlaps() == pytest.approx(compiled, abs=0.01)
    compiling.undo(model)
    assert overlaps() == pytest.approx(eager, abs=0.01)


class MadeAtFirstUse(Group):
    """Three ranks on links of 10 GB/s, with NCCL's habit: a connection takes a second to make when it is first used."""

    used: ClassVar[set[int]] = set()

    def shift(self, tensor: torch.Tensor, by: int) -> float:
        if by in self.used:
            return len(tensor) / 1e10
        self.used.add(by)
        return 1.0

    def all_gather_scalar(self, number: float) -> list[float]:
        return [number] * self.place.world_size

    def all_reduce(self, tensor: torch.Tensor) -> None:
        pass


def test_making_a_connection_is_not_taken_for_its_speed() -> None:
    group = MadeAtFirstUse(place=RankInfo(world_size=3), backend="nccl", device=torch.device("cpu"))
    rates = links(group)
    assert rates[rates > 0].tolist() == pytest.approx([1e10, 1e10])


def test_a_link_is_that_of_a_node_not_of_its_memory() -> None:
    """Two nodes of two ranks: 1 GB/s inside, and 100 MB/s between them, which two ranks share."""
    inside, alone, shared = 1e9, 1e8, 5e7
    rates = torch.tensor(
        [[0, inside, shared, alone], [alone, 0, alone, shared], [shared, alone, 0, inside], [alone, shared, alone, 0]]
    )
    assert rates_of_nodes(rates, (0, 0, 2, 2)) == ([alone] * 4, [alone] * 4)
    rates[1, 2] = rates[3, 0] = rates[0, 3] = rates[2, 1] = rates[1, 0] = rates[3, 2] = 0
    assert rates_of_nodes(rates, (0, 0, 2, 2)) == ([alone] * 4, [alone] * 4)
    assert rates_of_nodes(rates, ())[0] == [inside, shared, inside, shared]
    assert rates_of_nodes(rates, (0, 0, 0, 0)) == rates_of_nodes(rates, ())


def test_methods_on_shared_nodes_have_two_more_collectives_and_no_ddp() -> None:
    flat, levels = ({one.name: one for one in ladder(TrainOptions(), network(), nodes)} for nodes in ((), (0, 0, 2, 2)))
    assert levels["fp32"].mean_of
    assert levels["fp32"].pattern == "scatter_gather"
    for name in ("int8", "powersgd", "diloco"):
        assert levels[name].collectives == flat[name].collectives + 2
    assert [one.name for one in levels.values() if one.whole] == ["powersgd"]
