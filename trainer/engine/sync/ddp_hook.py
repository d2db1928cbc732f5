"""Sync methods as a communication hook of a DistributedDataParallel that someone else has made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from trainer.engine.group import Group
from trainer.engine.sync.buckets import Bucket
from trainer.engine.sync.every_step import STREAMS, Mean, MeanOf
from trainer.engine.sync.stream import Stream


@dataclass(frozen=True, kw_only=True)
class _Averaged:
    """A bucket of DDP, and how its mean is made."""

    parameters: tuple[int, ...]
    """Identity of each."""
    mean: Mean


class DdpHook:
    """Puts the mean over all ranks into each bucket, while the backward pass continues.

    All ranks fill DDP's buckets in the same order. By gloo, threads with connections of their own take them in turn, so
    that one bucket is encoded while another is on its way. By NCCL all collectives are started by the thread that calls
    the hook, which is also the one that starts DDP's own: one order on all ranks (docs/adr/0040).

    DDP cuts its buckets again after the first pass, in the order in which the gradients came. What a method keeps
    (error feedback) belongs to one bucket, so the first pass is averaged as it is.
    """

    def __init__(
        self, mean_of: MeanOf | None, group: Group, device: torch.device, weight: Callable[[], float] = lambda: 1.0
    ) -> None:
        """`mean_of`: None for float32 sums; `device`: of the gradients; `weight`: of this rank's gradients relative to
        an equal share, asked for once in each pass. To be called by all ranks."""
        self._mean_of, self._weight_now = mean_of, weight
        self._groups = group.clones(STREAMS)
        self._streams = [] if group.device.type == "cuda" else [Stream(device) for _ in self._groups]
        self._side = torch.cuda.Stream(device) if group.device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's
        self._is_first_pass = self._begins = True
        self._weight = 1.0
        self._averaged: dict[int, _Averaged] = {}

    def send(self, bucket: Any) -> Future[Tensor]:
        """The mean of a `torch.distributed.GradBucket`, in the bucket."""
        flat: Tensor = bucket.buffer()
        number: int = bucket.index()
        group = self._groups[number % len(self._groups)]
        if self._begins:
            self._weight = self._weight_now()
        self._begins = bucket.is_last()
        if self._is_first_pass or self._mean_of is None:
            self._is_first_pass = self._is_first_pass and not bucket.is_last()
            return group.sum_soon(flat.mul_(self._weight / group.place.world_size))
        mean, weight = self._mean_for(number, bucket.parameters(), group, self._mean_of), self._weight
        done: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)

        def average() -> None:
            try:
                values = flat.float()
                if weight != 1:
                    values.mul_(weight)
                mean.mean(values)
                if values is not flat:
                    flat.copy_(values)
                done.set_result(flat)
            except Exception as error:
                done.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is of its result

        self._start(number, average)
        return done

    def _start(self, number: int, average: Callable[[], None]) -> None:
        if self._side is None:
            self._streams[number % len(self._streams)].submit(average)
            return
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side), torch.no_grad():
            average()

    def _mean_for(self, number: int, parameters: list[torch.nn.Parameter], group: Group, mean_of: MeanOf) -> Mean:
        identities = tuple(map(id, parameters))
        known = self._averaged.get(number)
        if known is None or known.parameters != identities:
            mean = mean_of(Bucket(parameters), group)
            known = self._averaged[number] = _Averaged(parameters=identities, mean=mean)
        return known.mean
