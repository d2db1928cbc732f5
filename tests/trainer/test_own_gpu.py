"""Each rank has a GPU of its own, or is refused with what to do."""

from __future__ import annotations

import pytest
import torch

from trainer.config import RankInfo
from trainer.engine.hardware.device import own_gpu
from trainer.errors import ConfigurationError


def place(local_rank: int, ranks: int) -> RankInfo:
    return RankInfo(rank=local_rank, local_rank=local_rank, world_size=ranks, local_world_size=ranks, node="alpha")


def test_each_rank_takes_the_gpu_of_its_number() -> None:
    assert [own_gpu(place(rank, 2), 2, "auto") for rank in range(2)] == [torch.device("cuda", n) for n in range(2)]


@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_more_ranks_than_gpus_are_refused_on_every_rank(backend: str) -> None:
    for rank in range(3):
        with pytest.raises(ConfigurationError, match="3 ranks on this node, which shows 2 GPUs") as caught:
            own_gpu(place(rank, 3), 2, backend)
        assert "nproc_per_node: 2" in str(caught.value)


def test_ranks_share_a_gpu_where_somebody_names_gloo() -> None:
    assert [own_gpu(place(rank, 3), 1, "gloo") for rank in range(3)] == [torch.device("cuda", 0)] * 3
