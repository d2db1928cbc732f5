"""The compressed exchange with its values on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.conftest import Torchrun
from trainer.config import RankInfo
from trainer.engine.group import BOTH, Group
from trainer.engine.sync.codec import BlockCodec
from trainer.engine.sync.every_step import EveryStep
from trainer.engine.sync.exchange import ALIGNED, Codecs, Exchange


@pytest.fixture
def nccl_alone() -> Iterator[Group]:
    """NCCL with one rank: it refuses two on one GPU."""
    dist.init_process_group(BOTH, store=dist.HashStore(), rank=0, world_size=1)
    yield Group(place=RankInfo(), backend="nccl", device=torch.device("cuda", 0))
    dist.destroy_process_group()


def test_what_nccl_brings_back_is_each_steps_gradient(nccl_alone: Group) -> None:
    """The threads' CUDA streams wait for the backward pass, and the training for them: nothing old, nothing half."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
    codec = BlockCodec(8)
    sync = EveryStep("int8", model, nccl_alone, lambda b, g: Exchange(Codecs.both(codec), g, b.count, b.device))
    feedback = [torch.zeros(_padded(bucket.count), device="cuda") for bucket in sync._buckets]
    assert len(sync._buckets) > len(sync._streams), "a thread has more than one bucket"
    for step in range(6):
        torch.manual_seed(step)
        x = torch.randn(512, 1024, device="cuda")
        model(x).square().mean().mul(1000).backward()
        exact = [bucket.gradients() for bucket in sync._buckets]
        model.zero_grad(set_to_none=True)
        with sync.gradients(last=True):
            model(x).square().mean().mul(1000).backward()
        sync.finish()
        found = [bucket.gradients() for bucket in sync._buckets]
        model.zero_grad(set_to_none=True)
        for mine, wanted, owed in zip(found, exact, feedback, strict=True):
            owed[: len(wanted)] += wanted
            given = codec.decode(codec.encode(owed), len(owed))
            owed -= given
            owed[len(wanted) :] = 0
            torch.testing.assert_close(mine, given[: len(wanted)], rtol=1e-4, atol=1e-4 * float(given.abs().max()))


def _padded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def test_two_ranks_share_one_card() -> None:
    """The ranks exchange CUDA tensors by gloo, all collectives of a rank in one queue."""
    run = Torchrun(2, "cuda", module="tests.trainer.one_queue").result()
    assert run.code == 0, run.out + run.err
    for way, found in json.loads(run.out.splitlines()[-1]).items():
        assert found["one order"], way
        assert found["alike"], way


def test_two_cards_by_nccl(cards: Callable[[int], None]) -> None:
    cards(2)
    run = Torchrun(2, "nccl", module="tests.trainer.one_queue").result()
    assert run.code == 0, run.out + run.err
    for way, found in json.loads(run.out.splitlines()[-1]).items():
        assert found == {"backend": "nccl", "alike": True}, way


def test_four_ranks_as_two_nodes_share_one_card() -> None:
    run = Torchrun(4, "cuda", "2", module="tests.trainer.one_queue").result()
    assert run.code == 0, run.out + run.err
    for way, found in json.loads(run.out.splitlines()[-1]).items():
        assert found["one order"], way
        assert found["alike"], way


def test_four_cards_as_two_nodes_by_nccl(cards: Callable[[int], None]) -> None:
    cards(4)
    run = Torchrun(4, "nccl", "2", module="tests.trainer.one_queue").result()
    assert run.code == 0, run.out + run.err
    data = json.loads(run.out.splitlines()[-1])
    assert "fp32" in data
    for way, found in data.items():
        assert found == {"backend": "nccl", "alike": True}, way


def test_a_rank_without_a_row_takes_part_in_a_transfer_by_nccl(nccl_alone: Group) -> None:
    nothing = torch.empty(0, 5, device="cuda")
    assert nccl_alone.start_rows(nothing, [], [])().shape == (0, 5)
    row = torch.arange(5.0, device="cuda")[None]
    assert nccl_alone.start_rows(row, [0], [0])().equal(row)
