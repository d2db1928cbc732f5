"""Creation of a group of some of the ranks: NCCL waits for ever for one that should and does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainer.config import RankInfo
from trainer.engine import group as group_module
from trainer.engine import process_group
from trainer.engine.group import BOTH, Group

WORLD = 3
Ranks = tuple[int, ...]


@dataclass
class Recorder:
    """torch.distributed on one rank: it answers at once and keeps what it was asked for."""

    rank: int
    backend: str = ""
    bound: bool = False
    entered: list[Ranks] = field(default_factory=list)
    """The groups into whose making this rank went."""
    ReduceOp = dist.ReduceOp

    def init_process_group(self, backend: str, device_id: torch.device | None = None, **_: Any) -> None:
        self.backend, self.bound = backend, device_id is not None

    def all_reduce(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        tensor *= WORLD

    def new_group(
        self, ranks: list[int], timeout: timedelta, backend: str, use_local_synchronization: bool = False
    ) -> str | None:
        assert backend == self.backend, "a group that lacks one of the two backends"
        if use_local_synchronization and self.rank not in ranks:
            return None
        self.entered.append(tuple(ranks))
        return f"group of {ranks}"

    def destroy_process_group(self) -> None:
        pass


def waits_for_ever(recorders: list[Recorder]) -> list[str]:
    """NCCL's and torch's rule: a group is split from the world's one where a device is bound to it, and all ranks of
    that have to enter the split; else a group is made by its members alone."""
    groups = {ranks for one in recorders for ranks in one.entered}
    return [
        f"{ranks} waits for rank {other.rank}"
        for ranks in sorted(groups)
        for other in recorders
        if other.bound or other.rank in ranks
        if other.entered.count(ranks) < max(one.entered.count(ranks) for one in recorders)
    ]


def test_who_is_left_out_need_not_help_to_make_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(process_group, "rendezvous", lambda *_, **__: iter([(store, 0, WORLD)]))
    monkeypatch.setattr(Group, "connect", lambda self: None)
    for rank in range(WORLD):
        store.set(f"device/{rank}", f"cuda rank {rank}")
    recorders = [Recorder(rank) for rank in range(WORLD)]
    for recorder in recorders:
        monkeypatch.setattr(process_group, "dist", recorder)
        monkeypatch.setattr(group_module, "dist", recorder)
        place = RankInfo(rank=recorder.rank, world_size=WORLD)
        with process_group.join(place, torch.device("cuda", recorder.rank), "nccl") as group:
            assert (group.backend, recorder.backend) == ("nccl", BOTH)
            chosen = group.subgroup([0, 2])  # the forecast leaves rank 1 out; it goes to wait for the others' end
            assert (chosen is None) == (recorder.rank == 1)
            if chosen:
                assert len(chosen.clones(4)) == 4  # for the exchange's threads
    assert waits_for_ever(recorders) == []
    assert recorders[0].entered == recorders[2].entered == [(0, 2), (0, 2)]
    assert recorders[1].entered == []


def test_the_rule_finds_who_is_waited_for() -> None:
    members = [Recorder(0, entered=[(0, 2)]), Recorder(1), Recorder(2, entered=[(0, 2)])]
    assert waits_for_ever(members) == []
    bound = [Recorder(one.rank, bound=True, entered=one.entered) for one in members]
    assert waits_for_ever(bound) == ["(0, 2) waits for rank 1"]
