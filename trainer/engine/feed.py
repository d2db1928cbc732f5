"""Batches for the loop, one micro-batch after another, from this process or from worker processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from trainer.config import Place
from trainer.data.order import Order, share
from trainer.engine.workload import Batch, Portion, Workload
from trainer.errors import UsageError

PREFETCH = 2
"""Batches that each worker prepares ahead."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How an optimizer step's samples are cut: shares of ranks, and these into micro-batches."""

    place: Place
    seed: int
    per_step: int
    """Samples in one optimizer step, over all ranks."""
    micro_batch: int

    @property
    def share(self) -> int:
        """Samples of this rank, in each step."""
        return len(share(np.arange(self.per_step), self.place.rank, self.place.world_size))

    @property
    def largest_share(self) -> int:
        """Samples of the rank that has most, in each step: the same number on every rank."""
        return -(-self.per_step // self.place.world_size)

    @property
    def micro_batches(self) -> int:
        """Of this rank, in each step."""
        return -(-self.share // self.micro_batch)

    def portions(self, order: Order, cursor: int) -> Iterator[Portion]:
        """This rank's micro-batches from position `cursor` of the stream on, without end."""
        while True:
            indices = share(order.take(cursor, self.per_step), self.place.rank, self.place.world_size)
            positions = share(np.arange(cursor, cursor + self.per_step), self.place.rank, self.place.world_size)
            for at in range(0, len(indices), self.micro_batch):
                here = slice(at, at + self.micro_batch)
                yield Portion(split="train", indices=indices[here], positions=positions[here])
            cursor += self.per_step


class Feed:
    """An endless iterator over a rank's micro-batches; `waited` is how long the loop has waited for them, in seconds.

    Which batch comes when does not depend on the number of workers: DataLoader hands them out in the order asked for.
    """

    def __init__(self, workload: Workload, cut: Cut, cursor: int, *, workers: int, pin: bool) -> None:
        self.waited = 0.0
        self.workers = workers
        rank, world_size = cut.place.rank, cut.place.world_size
        samples = workload.stream(rank, world_size, cursor // world_size)
        if samples is not None:
            if cut.per_step % (world_size * cut.micro_batch):
                raise UsageError(
                    f"data that is streamed comes in whole batches: {cut.per_step} samples a step do not divide into"
                    f" {world_size} ranks × {cut.micro_batch}; change --batch-size or --micro-batch-size"
                )
            loader = _loader(samples, workers, pin, batch_size=cut.micro_batch, collate_fn=workload.collate)
        else:
            # An order of its own: it runs ahead, perhaps into the next epoch, by what the workers prefetch.
            portions = cut.portions(workload.order(cut.seed), cursor)
            if not workers:
                batches = map(workload.batch, portions)
                self._batches: Iterator[Batch] = map(_pinned, batches) if pin else batches
                self._close: Callable[[], None] = lambda: None
                return
            loader = _loader(_Asked(workload.batch), workers, pin, batch_size=None, sampler=portions)
        self._batches = iter(loader)
        self._close = getattr(self._batches, "_shutdown_workers", lambda: None)

    def __next__(self) -> Batch:
        began = time.perf_counter()
        batch = next(self._batches)
        self.waited += time.perf_counter() - began
        return batch

    def close(self) -> None:
        """End the worker processes."""
        self._close()


def _loader(dataset: Any, workers: int, pin: bool, **how: Any) -> Iterable[Batch]:
    if workers:
        how |= {"prefetch_factor": PREFETCH, "worker_init_fn": _leave_signals_to_the_loop}
    return cast(Iterable[Batch], DataLoader(dataset, num_workers=workers, pin_memory=pin, **how))


def _pinned(batch: Batch) -> Batch:
    return tuple(part.pin_memory() for part in batch)


class _Asked(Dataset[Batch]):
    """What DataLoader calls a dataset: its keys are whole portions."""

    def __init__(self, batch: Callable[[Portion], Batch]) -> None:
        self._batch = batch

    def __getitem__(self, portion: Portion) -> Batch:
        return self._batch(portion)


def _leave_signals_to_the_loop(_worker: int) -> None:
    """A wish to stop reaches all processes of a container. Workers go on until the loop has saved and closes them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    torch.set_num_threads(1)
