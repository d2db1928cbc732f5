"""Shares of a step by speed for a user's own DDP script: a batch sampler, and the weight of each rank's gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Sampler

from contract.events import Rebalanced
from trainer.engine.group import Group, rank_and_ranks
from trainer.engine.rank_speed import FEWEST, WINDOW, ForwardTimer, ShareBalancer, changed_shares
from trainer.engine.reporting.events import Events


def batch_sampler(samples: int, batch_size: int, *, seed: int | None) -> SharedBatches:
    """The batch sampler of this process: rank and number of ranks are those of torch's process group."""
    return SharedBatches(samples, batch_size, rank_and_ranks(), seed=seed)


class SharedBatches(Sampler[list[int]]):
    """Batch sampler of one rank. The ranks' batches of a step together are `batch_size` samples per rank, the same ones
    in the same step whatever the shares are; at the end of an epoch some are repeated, as by `DistributedSampler`."""

    def __init__(self, samples: int, batch_size: int, place: tuple[int, int], *, seed: int | None) -> None:
        """`samples`: length of the dataset; `batch_size`: of an equal share; `place`: rank and number of ranks; `seed`:
        of the order, None for that of the dataset. ValueError: an empty dataset or batch."""
        if samples < 1 or batch_size < 1:
            raise ValueError(f"{samples} samples in batches of {batch_size}: both must be at least 1")
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.rank, self.ranks = place
        self._changes = [(0, (batch_size,) * self.ranks)]
        """First batch of this epoch, and samples of each rank from there on."""
        self.given = 0
        """Batches that were asked for in this epoch: more than were used where worker processes load ahead."""
        self._epoch = 0
        self._unused = deque[int]()
        """Sizes of the batches that no forward pass has used yet."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each rank in a step, by the newest change."""
        return self._changes[-1][1]

    @property
    def per_step(self) -> int:
        """Samples of a step, over all ranks."""
        return self.batch_size * self.ranks

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next epoch; to be called before each, as of a `DistributedSampler`."""
        self._epoch = epoch

    def __len__(self) -> int:
        return -(-self.samples // self.per_step)

    def __iter__(self) -> Iterator[list[int]]:
        self._unused.clear()  # of an epoch that the script has left early
        self._changes, self.given = [(0, self.shares)], 0
        order = self._order()
        for step in range(len(self)):
            shares = next(shares for since, shares in reversed(self._changes) if since <= step)
            first = step * self.per_step + sum(shares[: self.rank])
            batch = [order[at % self.samples] for at in range(first, first + shares[self.rank])]
            self._unused.append(len(batch))
            self.given = step + 1
            yield batch

    def use(self) -> int:
        """Size of the batch of the forward pass that begins: the oldest that was not used."""
        return self._unused.popleft() if self._unused else self.shares[self.rank]

    def change(self, shares: Sequence[int], since: int) -> None:
        """Continue with other shares from batch `since` of this epoch on: the same on all ranks, none of which has been
        asked for it yet."""
        self._changes.append((since, tuple(shares)))

    def _order(self) -> Sequence[int]:
        if self.seed is None:
            return range(self.samples)
        chance = torch.Generator().manual_seed(self.seed + self._epoch)
        order: list[int] = torch.randperm(self.samples, generator=chance).tolist()
        return order


class SpeedShares:
    """Measures the forward passes of a DDP model, and lets the shares of `batches` follow the ranks' speed.

    A mean over the samples of a step is the mean of the ranks' means, each weighted by its number of samples.
    """

    def __init__(self, model: DistributedDataParallel, batches: SharedBatches, group: Group, events: Events) -> None:
        self._batches, self._group, self._events = batches, group, events
        self._names = group.all_gather_text(group.place.label)
        self._balancer = ShareBalancer(batches.shares)
        device = next(model.parameters()).device
        self._timer, self._timing = ForwardTimer(device), list[AbstractContextManager[None]]()
        self._device = device
        self._passes = self._samples = self._steps = 0
        model.module.register_forward_pre_hook(self._begin)
        model.module.register_forward_hook(self._end)

    def weight(self) -> float:
        """Weight of this rank's gradients in the exchange that begins, 1 for an equal share. To be called by all ranks,
        once in each step: every `WINDOW` steps they compare their speeds here."""
        equal = self._passes * self._batches.batch_size
        weight = self._samples / equal if equal else 1.0
        self._passes = self._samples = 0
        self._steps += 1
        if self._steps == FEWEST:  # in the first steps memory is allocated
            self._compute_s()
        elif self._steps % WINDOW == 0:
            self._compare()
        return weight

    def _compute_s(self) -> float:
        """Seconds of a sample since the last call."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._timer.read()

    def _compare(self) -> None:
        everyone = self._group.all_gather_scalar(self._compute_s())
        given = self._group.all_gather_scalar(self._batches.given)
        before = self._balancer.shares
        shares = self._balancer.compare(everyone)
        if shares is None:
            return
        self._batches.change(shares, since=int(max(given)))
        if self._group.place.rank == 0:
            self._events.emit(Rebalanced(shares=dict(zip(self._names, shares, strict=True))))
        changed = changed_shares(self._names, before, shares)
        self._events.say(f"shares of a step follow the nodes' speed: {changed}")

    def _begin(self, module: nn.Module, _inputs: Any) -> None:
        if not module.training:
            return
        size = self._batches.use()
        self._passes, self._samples = self._passes + 1, self._samples + size
        self._timing = [self._timer.part(size)]
        self._timing[0].__enter__()

    def _end(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        for timing in self._timing:
            timing.__exit__(None, None, None)
        self._timing = []
