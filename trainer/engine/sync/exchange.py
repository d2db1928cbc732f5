"""The mean over all ranks of a vector that travels encoded: reduce-scatter and all-gather, in a fixed order.

Each rank averages one part of the vector. A value is encoded twice, on its way to the rank that averages it and on the
way back; what encoding loses is kept on either side and added the next time (error feedback: Seide et al., 1-bit
stochastic gradient descent, 2014; on both sides: Tang et al., DoubleSqueeze, arXiv:1905.05957).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.engine.group import Group
from trainer.engine.sync.codec import Codec
from trainer.engine.sync.strategy import RankState, State

ALIGNED = 128
MANY = 1 << 20
"""Values over which the bytes of one are counted."""


@dataclass(frozen=True, kw_only=True)
class Codecs:
    """Codecs of a vector on its way to the ranks that average it, and of the mean on its way back."""

    there: Codec
    back: Codec

    @classmethod
    def both(cls, codec: Codec) -> Codecs:
        return cls(there=codec, back=codec)

    @property
    def bytes_per_value(self) -> float:
        """Bytes per value on average over both ways."""
        return (self.there.payload_bytes(MANY) + self.back.payload_bytes(MANY)) / 2 / MANY


class Exchange:
    """Exchange of vectors of `count` values, always the same ones."""

    collectives = 2

    def __init__(
        self, codecs: Codecs, group: Group, count: int, device: torch.device, *, feedback: bool = True
    ) -> None:
        """`feedback`: off for vectors whose values mean something else each time."""
        self._codecs, self._group, self._count, self.keeps = codecs, group, count, feedback
        self._ranks, self._rank = group.place.world_size, group.place.rank
        self._part = _part(count, self._ranks)
        # What is still to be sent, one row for each rank that averages; and what is still to be given back.
        self._unsent = torch.zeros(self._ranks, self._part, device=device)
        self._ungiven = torch.zeros(self._part, device=device)

    def mean(self, flat: Tensor) -> None:
        """Put into `flat` (count,), float32, the mean over all ranks: the same bits on each of them."""
        codecs, unsent, own = self._codecs, self._unsent, self._rank
        if not self.keeps:
            unsent.zero_()
            self._ungiven.zero_()
        unsent.view(-1)[: self._count] += flat
        payloads = torch.stack([codecs.there.encode(row) for row in unsent])
        with self._group.turn():
            arriving = self._group.start_all_to_all(payloads)
        received = arriving()
        total = unsent[own].clone()  # its own part is not encoded: it does not travel
        for rank in range(self._ranks):
            if rank != own:
                unsent[rank] -= codecs.there.decode(payloads[rank], self._part)
                total += codecs.there.decode(received[rank], self._part)
        unsent[own].zero_()
        unsent.view(-1)[self._count :] = 0.0  # beyond the vector's end there is nothing to make up for

        averaged = total.div_(self._ranks).add_(self._ungiven)
        encoded = codecs.back.encode(averaged)
        with self._group.turn():
            arriving = self._group.start_all_gather(encoded)
        for rank, payload in enumerate(arriving()):
            values = codecs.back.decode(payload, self._part)
            if rank == own:
                self._ungiven = averaged - values
                self._ungiven[max(0, self._count - rank * self._part) :] = 0.0
            at = rank * self._part
            flat[at : at + self._part] = values[: max(0, self._count - at)]
        for error in (unsent, self._ungiven):
            # The gradient reports an overflow, once; here it would stay. On a GPU, to look first is to wait for it.
            if error.is_cuda or not math.isfinite(float(error.sum())):
                error.nan_to_num_(0.0, 0.0, 0.0)

    def state(self) -> State:
        if not self.keeps:
            return {}
        return {"unsent": self._unsent.view(-1)[: self._count].cpu(), "ungiven": self._ungiven.cpu()}

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:
        """Exactly where it was, or so that the next mean brings what had been left over by however many ranks."""
        if not self.keeps:
            return
        if exact and "shard" not in saved[0].state:
            whole = saved[0].state["unsent"]
            self._ungiven.copy_(saved[0].state["ungiven"])
        else:
            whole = self.owed(saved, self._count) * self._ranks
        self._unsent.view(-1)[: self._count] = whole.to(self._unsent.device)

    def owed(self, saved: Sequence[RankState], count: int) -> Tensor:
        whole = late(saved, count)
        for one in saved:
            if "unsent" not in one.state:
                continue
            # In a mean what each of n had still to send weighs 1/n.
            rank, ranks, start, length = one.participant
            end = start + (count if length < 0 else length)
            whole[start:end] += one.state["unsent"] / ranks
            at = start + rank * _part(end - start, ranks)
            given = one.state["ungiven"][: max(0, end - at)]
            whole[at : at + len(given)] += given
        return whole


def late(saved: Sequence[RankState], count: int) -> Tensor:
    """(count,): what the next mean would have had of what was still to be added to it after an earlier change of
    ranks."""
    whole = torch.zeros(count)
    for one in saved:
        if "late" in one.state:
            whole += one.state["late"] / one.world_size
    return whole


def _part(count: int, ranks: int) -> int:
    """Values that each rank averages: whole blocks of a codec, so that none reaches over two ranks, or two rows."""
    return -(-count // (ranks * ALIGNED)) * ALIGNED
