"""The mean of a bucket's gradients as thin factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.engine.group import Group
from trainer.engine.sync.buckets import Bucket
from trainer.engine.sync.exchange import Codecs, Exchange, late
from trainer.engine.sync.low_rank import LowRank
from trainer.engine.sync.strategy import RankState, State


class Factors:
    keeps = True

    def __init__(self, bucket: Bucket, group: Group, codecs: Codecs, *, rank: int, seed: int) -> None:
        """`codecs`: of the factors; `rank`: theirs, not the group's."""
        self._group = group
        self._codecs = codecs
        self._exchanges: dict[int, Exchange] = {}
        self._shapes = [parameter.shape for parameter in bucket.parameters]
        self._low_rank = LowRank(self._shapes, rank=rank, seed=seed, device=bucket.device)

    @property
    def collectives(self) -> int:
        return Exchange.collectives * self._low_rank.averages

    def mean(self, flat: Tensor) -> None:
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes])
        gradients = [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        self._low_rank.reduce(gradients, self._averaged)

    def state(self) -> State:
        saved = self._low_rank.state_dict()
        return {f"{name}.{at}": each.cpu() for name in ("residuals", "q") for at, each in enumerate(saved[name])}

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:
        """Restore from another number of ranks only what was not yet sent: the Q's, which are but a good guess to
        start from, begin at their first values, alike on all ranks."""
        now = self._low_rank.state_dict()
        q = now["q"]
        if exact and "shard" not in saved[0].state:
            state = saved[0].state
            residuals = [state[f"residuals.{at}"] for at in range(len(q))]
            q = [state[f"q.{at}"] for at in range(len(q))]
        else:
            owed = self.owed(saved, sum(shape.numel() for shape in self._shapes)) * self._group.place.world_size
            pieces = torch.split(owed, [shape.numel() for shape in self._shapes])
            matrices = [pieces[at] for at in self._low_rank.matrices]
            residuals = [piece.view_as(each) for piece, each in zip(matrices, now["residuals"], strict=True)]
        self._low_rank.load_state_dict({"residuals": residuals, "q": q})

    def owed(self, saved: Sequence[RankState], count: int) -> Tensor:
        whole = late(saved, count)
        pieces = torch.split(whole, [shape.numel() for shape in self._shapes])
        for one in saved:
            _, ranks, _, _ = one.participant
            for number, at in enumerate(self._low_rank.matrices):
                if f"residuals.{number}" in one.state:
                    pieces[at].add_(one.state[f"residuals.{number}"].flatten(), alpha=1 / ranks)
        return whole

    def _averaged(self, tensor: Tensor) -> None:
        """Average in place, by an exchange of its own for each length. Without feedback: a factor's values belong to
        another basis each time, and what a rank's own factors cannot say of its gradient is kept in any case."""
        exchange = self._exchanges.get(len(tensor))
        if exchange is None:
            exchange = Exchange(self._codecs, self._group, len(tensor), tensor.device, feedback=False)
            self._exchanges[len(tensor)] = exchange
        exchange.mean(tensor)
