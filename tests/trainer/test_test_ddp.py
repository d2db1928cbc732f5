"""The connectivity test: every collective by values known beforehand, then the rate of each link."""

from __future__ import annotations

import pytest
import torch

from orchestrator.specs.connectivity import read_connectivity_result
from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.tools.test_ddp import check

ALL = ["all_reduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter", "barrier"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_test_is_reported_with_every_link(forked, ranks: int) -> None:
    ran = forked(ranks, "test-ddp").result()
    assert ran.code == 0, ran.err
    (reported,) = ran.events("tested")
    assert reported["checks"] + reported["lacking"] == ALL
    assert (reported["nodes"], reported["backend"]) == ([f"alpha.{rank}" for rank in range(ranks)], "gloo")
    for matrix in (reported["mbit_s"], reported["latency_ms"]):
        for row in range(ranks):
            for column in range(ranks):
                assert (matrix[row][column] is None) == (row == column)
                assert row == column or matrix[row][column] > 0
    assert read_connectivity_result(reported) is not None  # the other half understands it
    assert reported["all_reduce"]["mbit_s"] > 0
    assert reported["all_reduce"]["bytes"] >= 1 << 14
    kinds = {kind: len(ran.events(kind)) for kind in ("started", "joined", "done", "failed")}
    assert kinds == {"started": ranks, "joined": ranks, "done": ranks, "failed": 0}


def test_a_rank_alone_says_so_and_is_right(call) -> None:
    alone = call("test-ddp")
    assert alone.code == 0
    assert "is alone and has no peers" in alone.out
    assert "all_reduce 1 (expected 1) OK, barrier OK" in alone.out


class OffByOne(Group):
    """Peers that all send what this rank sends, and one collective in which something comes out wrong."""

    wrong = ""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.full_like(tensor, 3) + (self.wrong == "all_reduce"))

    def broadcast(self, tensor: torch.Tensor) -> None:
        tensor.fill_(1 + (self.wrong == "broadcast"))

    def all_gather(self, sent: torch.Tensor) -> torch.Tensor:
        found = torch.stack([torch.ones_like(sent), torch.full_like(sent, 2)])
        found[-1, -1] += self.wrong == "all_gather"
        return found

    def all_to_all(self, sent: torch.Tensor) -> torch.Tensor:
        if self.wrong == "all_to_all":
            raise RuntimeError("Connection closed by peer")
        return sent

    def reduce_scatter(self, sent: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("Backend gloo does not support reduce_scatter")

    def barrier(self) -> None:
        return


def seen(wrong: str) -> dict[str, str]:
    group = OffByOne(place=RankInfo(rank=0, world_size=2), backend="gloo", device=torch.device("cpu"))
    object.__setattr__(group, "wrong", wrong)
    return {one.name: "lacking" if one.lacking else one.wrong for one in check(group)}


def test_a_collective_missing_in_a_backend_is_no_fault() -> None:
    assert seen("") == {name: "lacking" if name == "reduce_scatter" else "" for name in ALL}


@pytest.mark.parametrize(("wrong", "says"), [
    ("all_reduce", "all_reduce gave 4, expected 3"),
    ("broadcast", "broadcast gave 2, expected 1"),
    ("all_gather", "all_gather gave 3, expected 2"),
])  # fmt: skip
def test_a_wrong_value_is_reported_wherever_it_stands(wrong: str, says: str) -> None:
    assert seen(wrong)[wrong] == says


def test_a_peer_that_is_gone_is_no_missing_collective() -> None:
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        seen("all_to_all")
