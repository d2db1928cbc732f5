"""Ranks whose hardware is fast at different precisions step by one gradient, with one scale of the loss."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.engine.hardware.agreement import DTYPES, agree
from trainer.engine.hardware.device import Hardware
from trainer.engine.optimization.optimizer import LossScaler

FP32, BF16, FP16 = DTYPES


class Board:
    """Board on which the ranks of one process exchange messages."""

    def __init__(self, ranks: int) -> None:
        self._words: list[Any] = [None] * ranks
        self._meet = threading.Barrier(ranks, timeout=10)

    def gather(self, rank: int, word: Any) -> list[Any]:
        self._words[rank] = word
        self._meet.wait()
        everyones = list(self._words)
        self._meet.wait()
        return everyones


@dataclass(frozen=True, kw_only=True)
class InThreads(Group):
    board: Board

    def all_gather_text(self, text: str) -> list[str]:
        return self.board.gather(self.place.rank, text)

    def all_gather_scalar(self, number: float) -> list[float]:
        return self.board.gather(self.place.rank, number)


def agreed(*fleet: tuple[str, torch.dtype], auto: bool = True) -> list[Hardware]:
    board = Board(len(fleet))
    cpu = torch.device("cpu")

    def one(rank: int) -> Hardware:
        device, dtype = fleet[rank]
        place = RankInfo(rank=rank, world_size=len(fleet), node=f"node-{rank}")
        hardware = Hardware(device=torch.device(device), threads=1, dtype=dtype, onednn="")
        return agree(hardware, InThreads(place=place, backend="gloo", device=cpu, board=board), auto=auto)

    with ThreadPoolExecutor(len(fleet)) as threads:
        return list(threads.map(one, range(len(fleet))))


@pytest.mark.parametrize(
    ("fleet", "dtypes", "scales", "updates"),
    [
        ((("cuda", BF16), ("cuda", FP16)), (BF16, FP16), True, FP32),
        ((("cuda", FP16), ("cpu", FP32)), (FP16, FP32), True, FP32),
        ((("cuda", BF16), ("cpu", FP32)), (BF16, FP32), False, FP32),
        ((("cuda", BF16), ("cuda", FP16), ("cpu", FP32)), (BF16, FP16, FP32), True, FP32),
        ((("cpu", BF16), ("cuda", FP16)), (FP32, FP16), True, FP32),
        ((("cpu", BF16), ("cpu", FP32)), (FP32, FP32), False, FP32),
        ((("cuda", BF16), ("cpu", BF16)), (BF16, BF16), False, BF16),
        ((("cuda", FP16), ("cuda", FP16)), (FP16, FP16), True, FP16),
    ],
)
def test_every_mix(fleet: Any, dtypes: tuple[torch.dtype, ...], scales: bool, updates: torch.dtype) -> None:
    found = agreed(*fleet)
    assert tuple(one.dtype for one in found) == dtypes
    assert {one.scales for one in found} == {scales}
    assert {one.dtype_of_updates for one in found} == {updates}
    assert all(tuple(dtype for _, dtype in one.everyones) == dtypes for one in found)


def test_who_lowers_the_others_is_named_on_every_rank() -> None:
    for one in agreed(("cpu", BF16), ("cpu", FP32), ("cuda", BF16)):
        assert one.lowered_for == ("node-1",)
    for one in agreed(("cpu", BF16), ("cpu", BF16), auto=False):
        assert one.lowered_for == ()


def test_an_overflow_on_one_rank_skips_the_update_and_lowers_the_scale_on_all() -> None:
    """One rank alone sees it where each steps by its own gradients."""
    scales, moved = [], []
    for overflows in (True, False):
        torch.manual_seed(0)
        net = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        before = net.weight.detach().clone()
        scaler = LossScaler("cpu", init_scale=1024.0)
        scaler.scale(net(torch.ones(1, 2)).sum()).backward()
        assert net.weight.grad is not None
        if overflows:
            net.weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        scaler.overflowed(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, net.weight))
    assert scales == [512.0, 512.0]
    assert moved == [False, False]


@pytest.mark.parametrize("way", ["fp32", "diloco"])
def test_three_precisions_train_one_model(forked, tmp_path: Path, way: str) -> None:
    run = forked(3, str(tmp_path), way, module="tests.trainer.mixed_ranks").result()
    assert run.code == 0, run.err
    ends = [json.loads(line.removeprefix("end ")) for line in run.out.splitlines() if line.startswith("end ")]
    assert sorted(end["dtype"] for end in ends) == ["bfloat16", "float16", "float32"]
    assert len({end["weights"] for end in ends}) == 1, ends
    # The second step overflows float16 on the rank that has it: all skip it and lower the scale.
    (scale,) = {end["scale"] for end in ends}
    assert scale <= 2.0**15
    assert "mixed precision (bfloat16: node-0; float16: node-1; float32: node-2)" in run.out
    assert "loss scaled on all ranks for the float16 of node-1" in run.out


def test_a_rank_alone_scales_for_itself() -> None:
    alone = Hardware(device=torch.device("cuda"), threads=1, dtype=FP16, onednn="")
    assert alone.scales
    assert not replace(alone, dtype=BF16).scales
    assert agree(alone, Group(place=RankInfo(), backend="none", device=torch.device("cpu")), auto=True) is alone
