"""Means over ranks of which several share a node: summed within each node first, so that each node sends only once.

Between nodes lies the LAN, within one PCIe, NVLink or memory. The ranks of a node add up a bucket as it is (a
reduce-scatter), so that each of them owns one shard of the node's sum; the owners of a shard, one on each node, bring
it to the mean over nodes by the run's method; then each node's ranks collect the shards (an all-gather). A node with
n ranks sends an n-th of what its ranks would send each for themselves, and each rank encodes an n-th.

Nodes may have different numbers of ranks: there are as many shards as the smallest node has ranks, and the further
ranks of a larger node own none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.engine.group import Group
from trainer.engine.sync.buckets import Bucket
from trainer.engine.sync.every_step import Mean, MeanOf
from trainer.engine.sync.exchange import ALIGNED
from trainer.engine.sync.strategy import RankState, State


def by_node(nodes: Sequence[int]) -> list[list[int]]:
    """Ranks of each node. `nodes`: the node of each rank, as in `Group.nodes`."""
    return [[rank for rank, node in enumerate(nodes) if node == one] for one in dict.fromkeys(nodes)]


def in_two_levels(nodes: Sequence[int]) -> bool:
    """Return whether there are several nodes, and several ranks on one of them."""
    return 1 < len(set(nodes)) < len(nodes)


def owners(nodes: Sequence[int]) -> int:
    """Ranks of each node that own a shard, its first ones."""
    return min(map(len, by_node(nodes)))


def summed_in_nodes(mean_of: MeanOf, *, whole: bool = False) -> MeanOf:
    """`mean_of`, between nodes only where ranks share nodes. `whole`: for a method that must see whole buckets, which
    one rank of each node then owns."""

    def made(bucket: Bucket, group: Group) -> Mean:
        return InNodes(mean_of, bucket, group, whole=whole) if in_two_levels(group.nodes) else mean_of(bucket, group)

    return made


class InNodes:
    """The mean of a bucket over all ranks, the same bits on each of them."""

    def __init__(self, mean_of: MeanOf, bucket: Bucket, group: Group, *, whole: bool) -> None:
        nodes, rank = by_node(group.nodes), group.place.rank
        self._group, self._count, self._ranks = group, bucket.count, group.place.world_size
        self._peers = next(node for node in nodes if rank in node)
        most = 1 if whole else owners(group.nodes)
        self._width = bucket.count if whole else -(-bucket.count // (most * ALIGNED)) * ALIGNED
        self._owners = self._peers[: -(-bucket.count // self._width)]  # of a small bucket there are fewer shards
        self._owns = rank in self._owners
        number = self._peers.index(rank)
        start = number * self._width if self._owns else 0
        self._shard = min(self._width, bucket.count - start) if self._owns else 0
        self._weight = len(nodes) / self._ranks
        # A rank that owns nothing still has to know how many collectives the others have.
        device = bucket.device if self._owns else torch.device("meta")
        between = group.part(sorted(node[number] for node in nodes) if self._owns else [rank])
        self._mean = mean_of(bucket.part(self._shard, device), between)
        self._place = torch.tensor([between.place.rank, len(nodes), start, self._shard])
        self._device = bucket.device
        self._late: Tensor | None = None
        """Gradient that the next mean is to have besides: kept for other ranks or nodes than these."""

    @property
    def collectives(self) -> int:
        return 2 + self._mean.collectives

    @property
    def keeps(self) -> bool:
        return self._mean.keeps

    def mean(self, flat: Tensor) -> None:
        if self._late is not None:
            flat += self._late
            self._late = None
        mine = [self._group.place.rank] if self._owns else []
        shards = F.pad(flat, (0, len(self._owners) * self._width - self._count)).view(-1, self._width)
        with self._group.turn():
            arriving = self._group.start_rows(shards, self._owners, self._peers if mine else [])
        received = arriving()
        averaged = flat.new_empty(0, self._width)
        if mine:
            # The ranks of a node in their order, on one of them: the same sum for all.
            shard = received.sum(0)[: self._shard].mul_(self._weight)
            self._mean.mean(shard)
            averaged = F.pad(shard, (0, self._width - self._shard)).expand(len(self._peers), -1)
        else:
            for _ in range(self._mean.collectives):
                with self._group.turn():
                    self._group.start_rows(averaged, [], [])
        with self._group.turn():
            arriving = self._group.start_rows(averaged, self._peers if mine else [], self._owners)
        flat.copy_(arriving().view(-1)[: self._count])

    def state(self) -> State:
        if not self.keeps:
            return {}
        state: dict[str, Tensor] = {"shard": self._place}
        if self._owns:
            state |= self._mean.state()
        if self._late is not None:
            state["late"] = self._late.cpu()
        return state

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:
        """Exactly where it was; or, from other ranks or nodes, so that the next mean brings what had been left over."""
        if not self.keeps:
            return
        if exact and "shard" in saved[0].state and torch.equal(saved[0].state["shard"], self._place):
            state = saved[0].state
            self._late = state["late"].to(self._device) if "late" in state else None
            if self._owns:
                own = {name: tensor for name, tensor in state.items() if name not in ("shard", "late")}
                self._mean.restore(
                    [RankState(rank=saved[0].rank, world_size=saved[0].world_size, state=own)], exact=True
                )
            return
        owed = self.owed(saved, self._count) * self._ranks
        self._late = owed.to(self._device) if owed.any() else None

    def owed(self, saved: Sequence[RankState], count: int) -> Tensor:
        return self._mean.owed(saved, count)
