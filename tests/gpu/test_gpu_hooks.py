"""`orch_hooks.ddp` with a model on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.conftest import Torchrun
from trainer.config import RankInfo
from trainer.engine.group import BOTH, Group
from trainer.engine.sync.codec import BlockCodec
from trainer.engine.sync.ddp_hook import DdpHook
from trainer.engine.sync.exchange import Codecs, Exchange


@pytest.fixture
def nccl_alone() -> Iterator[Group]:
    """NCCL with one rank: it refuses two on one GPU."""
    dist.init_process_group(BOTH, store=dist.HashStore(), rank=0, world_size=1)
    yield Group(place=RankInfo(), backend="nccl", device=torch.device("cuda", 0))
    dist.destroy_process_group()


def test_each_step_has_its_own_gradient(nccl_alone: Group) -> None:
    """DDP waits for the hook's CUDA stream, and the hook for the backward pass: nothing old, nothing half."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda()
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    codecs = Codecs.both(BlockCodec(8))
    hook = DdpHook(lambda b, g: Exchange(codecs, g, b.count, b.device), nccl_alone, nccl_alone.device)
    model.register_comm_hook(None, lambda _, bucket: hook.send(bucket))
    for step in range(6):
        x = torch.randn(256, 512, device="cuda")
        net(x).square().mean().mul(1000).backward()
        exact = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
        net.zero_grad(set_to_none=True)
        model(x).square().mean().mul(1000).backward()
        for parameter, wanted in zip(net.parameters(), exact, strict=True):
            assert parameter.grad is not None
            error = float((parameter.grad - wanted).norm() / wanted.norm())
            assert error <= (1e-5 if step == 0 else 0.02), f"step {step}"
        net.zero_grad(set_to_none=True)


def test_two_ranks_share_one_card(tmp_path: Path) -> None:
    """The ranks exchange by gloo, from threads with CUDA streams of their own."""
    result = Torchrun(2, str(tmp_path), "cuda", module="tests.trainer.hooked_ranks").result()
    assert result.code == 0, result.err
    found = json.loads(next(line for line in result.out.splitlines() if line.startswith("{")))
    for name in ("fp16", "int8", "int4+8", "powersgd"):
        assert found[name]["spread"] == 0, name
        assert found[name]["loss"] == pytest.approx(found[name]["plain loss"], rel=0.01), name
