"""Batches for the loop, one micro-batch after another, from this process or from worker processes."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainer.config import RankInfo
from trainer.data.batch import Batch, BatchRequest
from trainer.data.order import Indices, Order, span
from trainer.engine.hardware.batch_copies import BatchCopies
from trainer.engine.workload import Workload
from trainer.errors import OptionError

CPU = torch.device("cpu")
PREFETCH = 2
"""Batches that each worker prepares ahead."""
WORTH_WORKERS = 4
"""Batches for each worker from which an evaluation starts worker processes."""


@dataclass(frozen=True, kw_only=True)
class BatchSplit:
    """Split of an optimizer step's samples into the ranks' shares, and of these into micro-batches."""

    place: RankInfo
    seed: int
    per_step: int
    """Samples in one optimizer step, over all ranks."""
    micro_batch: int
    shares: tuple[int, ...] = ()
    """Samples of each rank in a step; empty: equal shares."""
    sharded: bool = False
    """True if each node holds only a part of the training samples, as `Workload.sharded`."""
    nodes: tuple[int, ...] = ()
    """Node of each rank, as `Group.nodes`; empty: each rank is on a node of its own."""

    @property
    def share(self) -> int:
        """Samples of this rank, in each step."""
        return len(range(self.per_step)[self._here])

    @property
    def by_rank(self) -> tuple[int, ...]:
        """Samples of each rank in a step."""
        if self.shares:
            return self.shares
        ranks = self.place.world_size
        return tuple(len(range(self.per_step)[span(self.per_step, rank, ranks)]) for rank in range(ranks))

    @property
    def largest_share(self) -> int:
        """Samples of the rank that has most, in each step: the same number on every rank."""
        return max(self.by_rank)

    @property
    def weight(self) -> float:
        """This rank's share in proportion to an equal one."""
        return self.share * self.place.world_size / self.per_step

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of this rank in each step."""
        return len(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Samples in each of this rank's micro-batches of a step."""
        return [min(self.micro_batch, self.share - at) for at in range(0, self.share, self.micro_batch)]

    @property
    def _here(self) -> slice:
        """This rank's part of a step."""
        rank = self.place.rank
        if self.shares:
            return slice(sum(self.shares[:rank]), sum(self.shares[: rank + 1]))
        return span(self.per_step, rank, self.place.world_size)

    def requests(self, order: Order, cursor: int) -> Iterator[BatchRequest]:
        """This rank's micro-batches from position `cursor` of the stream on, without end."""
        while True:
            begin = self._begin(cursor)
            indices = order.take(begin, self.share)
            positions = np.arange(begin, begin + self.share)
            for at in range(0, len(indices), self.micro_batch):
                here = slice(at, at + self.micro_batch)
                yield BatchRequest(split="train", indices=indices[here], positions=positions[here])
            cursor += self.per_step

    def _begin(self, cursor: int) -> int:
        """Position of this rank's first sample in the step at `cursor`. A node with a part of the samples has a stream
        of its own, in which its ranks take as many samples per step as they do of a whole step."""
        if not self.sharded:
            return cursor + int(self._here.start)
        rank = self.place.rank
        nodes = self.nodes or tuple(range(self.place.world_size))
        # Not by local ranks: of a node that has left some of its ranks out, those that train are fewer.
        peers = [peer for peer, node in enumerate(nodes) if node == nodes[rank]]
        before = sum(self.by_rank[peer] for peer in peers if peer < rank)
        return cursor * sum(self.by_rank[peer] for peer in peers) // self.per_step + before


class MicroBatchLoader:
    """An endless iterator over a rank's micro-batches, on its device. `waited` is how long the loop has waited for
    them, in seconds.

    Which batch comes when does not depend on the number of workers: DataLoader hands them out in the order asked for.
    """

    def __init__(
        self, workload: Workload, split: BatchSplit, cursor: int, *, workers: int, device: torch.device = CPU
    ) -> None:
        self.waited = 0.0
        self.workers = workers
        self._workload, self._pin = workload, device.type != "cpu"
        self._copies = BatchCopies(device)
        self._ahead: Batch | None = None
        self._close: Callable[[], None] = lambda: None
        self._batches: Iterator[Batch]
        self._open(split, cursor)

    def resplit(self, split: BatchSplit, cursor: int) -> None:
        """Continue from position `cursor` by another split."""
        self._close()
        self._open(split, cursor)

    def _open(self, split: BatchSplit, cursor: int) -> None:
        self.split = split
        self._ahead = None
        workload, workers, pin = self._workload, self.workers, self._pin
        if not workload.streamed:
            # An order of its own: it runs ahead, perhaps into the next epoch, by what the workers prefetch.
            requests = split.requests(workload.order(split.seed), cursor)
            self._batches, self._close = _load(workload, requests, workers, pin)
        elif not workers:
            samples = _parts(iter(_stream(workload, split, cursor)), chain.from_iterable(repeat(split.sizes)))
            batches = map(workload.collate, samples)
            self._batches = map(_pinned, batches) if pin else batches
        else:
            collate = partial(_step, workload.collate, split.sizes)
            loader = _loader(_stream(workload, split, cursor), workers, pin, batch_size=split.share, collate_fn=collate)
            steps, self._close = _from_workers(loader)
            self._batches = chain.from_iterable(_micro_batches(Joined(*step)) for step in steps)

    def __next__(self) -> Batch:
        batch, self._ahead = self._ahead or self._begin_copy(), None
        return self._copies.finish(batch)

    def copy_ahead(self) -> None:
        """Load the next batch and begin to copy it, where the device is not the CPU: to be called when the passes over
        the last one are queued, which the device then computes meanwhile."""
        if self._pin and self._ahead is None:
            self._ahead = self._begin_copy()

    def _begin_copy(self) -> Batch:
        began = time.perf_counter()
        batch = next(self._batches)
        self.waited += time.perf_counter() - began
        return self._copies.begin(batch)

    def close(self) -> None:
        """End the worker processes."""
        self._close()


def validation_batches(
    workload: Workload, indices: Indices, micro_batch: int, *, workers: int, device: torch.device
) -> Generator[Batch, None, None]:
    """Batches of validation samples on the device, in order, loaded as those of the training are: by worker processes
    if each has several, and from pinned memory. To be closed: that ends the workers."""
    parts = [indices[at : at + micro_batch] for at in range(0, len(indices), micro_batch)]
    requests = [BatchRequest(split="validation", indices=part, positions=part) for part in parts]
    copies = BatchCopies(device)
    workers = workers if len(requests) >= WORTH_WORKERS * workers else 0
    batches, close = _load(workload, requests, workers, pin=device.type != "cpu")
    try:
        for batch in batches:
            yield copies.finish(copies.begin(batch))
    finally:
        close()


def _load(
    workload: Workload, requests: Iterable[BatchRequest], workers: int, pin: bool
) -> tuple[Iterator[Batch], Callable[[], None]]:
    """Batches in the order asked for, and what ends the worker processes."""
    if not workers:
        batches = map(workload.batch, requests)
        return (map(_pinned, batches) if pin else batches), lambda: None
    asked = _Asked(workload.batch, dense=pin)
    return _from_workers(_loader(asked, workers, pin, batch_size=None, sampler=requests))


def _from_workers(loader: Iterable[Any]) -> tuple[Iterator[Any], Callable[[], None]]:
    loaded = iter(loader)
    return loaded, loaded._shutdown_workers  # type: ignore[attr-defined]  # torch has no public word for it


def _stream(workload: Workload, split: BatchSplit, cursor: int) -> Iterable[Batch]:
    world_size = split.place.world_size
    if split.per_step % world_size:
        raise OptionError(
            f"data that is streamed is shared evenly: {split.per_step} samples a step do not divide into"
            f" {world_size} ranks; change --global-batch-size"
        )
    return workload.stream(split.place.rank, world_size, cursor // world_size, split.share)


def _parts(samples: Iterator[Batch], sizes: Iterable[int]) -> Iterator[list[Batch]]:
    for size in sizes:
        part = list(islice(samples, size))
        if not part:
            return
        yield part


class Joined(NamedTuple):
    """A step's micro-batches, as they leave a worker: each tensor that travels takes a file descriptor, and there may
    be many micro-batches."""

    tensors: Sequence[Tensor]
    shapes: Sequence[Sequence[Sequence[int]]]
    """Shape of each part of each micro-batch."""


def _step(collate: Callable[[list[Batch]], Batch], sizes: Sequence[int], samples: list[Batch]) -> Joined:
    parts = list(zip(*map(collate, _parts(iter(samples), sizes)), strict=True))
    return Joined(
        tensors=[torch.cat([each.reshape(-1) for each in part]) for part in parts],
        shapes=[[tuple(each.shape) for each in part] for part in parts],
    )


def _micro_batches(step: Joined) -> Iterator[Batch]:
    parts = []
    for tensor, shapes in zip(step.tensors, step.shapes, strict=True):
        pieces = torch.split(tensor, [math.prod(shape) for shape in shapes])
        parts.append([piece.reshape(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)])
    return zip(*parts, strict=True)


def _loader(dataset: Any, workers: int, pin: bool, **how: Any) -> Iterable[Batch]:
    if workers:
        how |= {"prefetch_factor": PREFETCH, "worker_init_fn": _leave_signals_to_the_loop}
    return cast(Iterable[Batch], DataLoader(dataset, num_workers=workers, pin_memory=pin, **how))


def _pinned(batch: Batch) -> Batch:
    return tuple(part.pin_memory() for part in _dense(batch))


def _dense(batch: Batch) -> Batch:
    """Copy what has gaps in memory: a GPU copies a tensor that has some from memory that is not pinned, and waits."""
    return tuple(part if _is_dense(part) else part.contiguous() for part in batch)


def _is_dense(part: Tensor) -> bool:
    return part.is_contiguous() or (part.dim() == 4 and part.is_contiguous(memory_format=torch.channels_last))


class _Asked(Dataset[Batch]):
    """Dataset in the sense of DataLoader: its keys are whole requests."""

    def __init__(self, batch: Callable[[BatchRequest], Batch], *, dense: bool) -> None:
        self._batch, self._dense = batch, dense

    def __getitem__(self, request: BatchRequest) -> Batch:
        batch = self._batch(request)
        return _dense(batch) if self._dense else batch


def _leave_signals_to_the_loop(_worker: int) -> None:
    """Ignore requests to stop, which reach all processes of a container: workers continue until the loop has saved and
    closes them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    torch.set_num_threads(1)
