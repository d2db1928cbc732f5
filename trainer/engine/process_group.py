"""All ranks together: the one place that touches torch.distributed."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Place
from trainer.errors import ConfigurationError, TrainerError


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that train together; alone, every collective gives back what it got."""

    place: Place
    backend: str
    """gloo, nccl, or none for a rank alone."""
    device: torch.device
    """Where tensors must lie to be sent."""

    @property
    def alone(self) -> bool:
        return self.place.world_size == 1

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over all ranks."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(number) for number in tensor.tolist()]

    def least(self, numbers: Sequence[float]) -> list[float]:
        """Each number as it is on the rank where it is smallest."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return [float(number) for number in tensor.tolist()]

    def rows(self, mine: Tensor, total: int) -> Tensor:
        """(total, columns): every rank's rows, one rank's after another's, each rank having its share of `total`."""
        if self.alone:
            return mine
        columns = torch.tensor([mine.shape[1]], device=self.device)
        dist.all_reduce(columns, dist.ReduceOp.MAX)  # a rank without a row does not know
        whole = torch.zeros(total, int(columns), dtype=mine.dtype, device=self.device)
        first = total * self.place.rank // self.place.world_size
        whole[first : first + len(mine), : mine.shape[1]] = mine
        dist.all_reduce(whole)
        return whole.cpu()

    def all_reduce(self, tensor: Tensor) -> None:
        if not self.alone:
            dist.all_reduce(tensor)

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's values into everybody's `tensor`, wherever it lies."""
        if self.alone:
            return
        sent = tensor.to(self.device)
        dist.broadcast(sent, src=0)
        if sent is not tensor:
            tensor.copy_(sent)

    def barrier(self) -> None:
        self.sum([0.0])

    def broadcast_text(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        if self.alone:
            return text
        length = torch.tensor([len(text.encode())])
        self.broadcast(length)
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.place.rank == 0:
            letters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        self.broadcast(letters)
        return bytes(letters.tolist()).decode()

    def must_agree(self, subject: str, text: str) -> None:
        """Refuse to train if a rank differs from rank 0, before the difference shows as a wrong loss."""
        mine = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.int64, device=self.device)
        theirs = mine.clone()
        self.broadcast(theirs)
        differing = [0.0] * self.place.world_size
        differing[self.place.rank] = float(not torch.equal(mine, theirs))
        ranks = [str(rank) for rank, differs in enumerate(self.sum(differing)) if differs]
        if ranks:
            raise ConfigurationError(f"rank {', '.join(ranks)} has other {subject} than rank 0: make them the same")

    def wrap(self, model: nn.Module, *, static_graph: bool) -> nn.Module:
        """The model with its gradients averaged over the ranks; weights are rank 0's from here on."""
        if self.alone:
            return model
        # Buffers are sent before an evaluation, by `evaluate`. DDP sends them in a forward pass, and a rank whose
        # memory failed it and which tries again would wait there for an answer from peers that are further on.
        return DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=static_graph, **_BUFFERS_STAY)

    def gradients(self, model: nn.Module, *, sync: bool) -> AbstractContextManager[None]:
        """Average gradients in this backward pass, or leave it to a later one of the same step."""
        if isinstance(model, DistributedDataParallel) and not sync:
            return model.no_sync()
        return nullcontext()


_BUFFERS_STAY: dict[str, Any] = {
    next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")  # since torch 2.13, and before
        if name in inspect.signature(DistributedDataParallel).parameters
    ): False
}


@contextmanager
def join(place: Place, device: torch.device, backend: str) -> Iterator[Group]:
    """Meet the other ranks, and part from them in order: torchrun waits 300 s for one that just vanishes."""
    if place.world_size == 1:
        yield Group(place=place, backend="none", device=torch.device("cpu"))
        return
    if backend == "nccl" and device.type != "cuda":
        raise ConfigurationError(f"{place.name}: backend nccl, but torch sees no GPU here; use --backend gloo")
    timeout = timedelta(seconds=place.pg_timeout_s)
    try:
        store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))
        store.set_timeout(timeout)
        chosen = _choose_backend(place, device, backend, store)
        dist.init_process_group(
            chosen,
            store=PrefixStore("trainer", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
            device_id=device if chosen == "nccl" else None,
        )
        group = Group(place=place, backend=chosen, device=device if chosen == "nccl" else torch.device("cpu"))
        present = int(group.sum([1.0])[0])
    except (RuntimeError, ValueError) as error:
        raise TrainerError(
            f"{place.name} could not join the others at {place.master or 'MASTER_ADDR:MASTER_PORT'}"
            f" within {place.pg_timeout_s} s: {error}"
        ) from error
    if present != place.world_size:
        raise TrainerError(f"{place.name}: the first all-reduce counted {present} ranks, not {place.world_size}")
    yield group
    # Only after a good end: with a rank gone, destroying can wait for it; a failed process just ends.
    group.barrier()
    dist.destroy_process_group()


def leave(place: Place, code: int) -> int:
    """The exit code of a process alone; one that has met others ends here and now.

    Python's own end would wait for ranks that no longer answer after a failure. After a success gloo's threads
    may still ask for Python when it is gone: one run in eight of three ranks ended in an abort (`terminate called
    without an active exception`) after its last event, which torchrun takes for a failure.
    """
    if place.world_size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def expected_backend(place: Place, device: torch.device, backend: str) -> str:
    """The backend as far as this rank can tell before it has met the others."""
    if place.world_size == 1:
        return "none"
    return "gloo" if backend == "auto" and device.type != "cuda" else backend


def _choose_backend(place: Place, device: torch.device, backend: str, store: Store) -> str:
    """One backend serves all ranks: nccl only if every one of them has a GPU."""
    if backend != "auto":
        return backend
    store.set(f"gpu/{place.rank}", str(int(device.type == "cuda")))
    votes = [store.get(f"gpu/{rank}") == b"1" for rank in range(place.world_size)]
    return "nccl" if all(votes) else "gloo"
