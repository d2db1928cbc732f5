"""All ranks together, and what they tell each other: the one place that calls torch's collectives."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import Store
from torch.futures import Future

from trainer.agent import heartbeat
from trainer.config import RankInfo
from trainer.engine.transfers import Arriving, arriving, send_rows, sum_soon
from trainer.errors import ConfigurationError, TrainerError

OVER = "over"
BOTH = "cpu:gloo,cuda:nccl"
"""torch's name for a process group that sends CPU tensors by gloo and CUDA tensors by NCCL."""


def rank_and_ranks() -> tuple[int, int]:
    """Rank of this process and number of ranks; (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that train together; alone, every collective gives back what it got.

    Numbers and weights travel by gloo from CPU memory, whatever the backend: NCCL carries gradients alone (DDP's or the
    exchange's), so that no two of its communicators are ever in use at once (docs/adr/0040).
    """

    place: RankInfo
    backend: str
    """Backend that carries gradients: gloo, nccl, or none for a rank alone."""
    device: torch.device
    """Device on which `backend` sends tensors."""
    handle: ProcessGroup | None = None
    """torch's own, where it is not the one of all processes."""
    ranks: tuple[int, ...] = ()
    """Each rank's number among all processes, where that is another."""
    store: Store | None = None
    """Key-value store that all processes share, besides collectives."""
    without_gpu: tuple[str, ...] = ()
    """The ranks for which `backend` is gloo although others have a GPU."""
    nodes: tuple[int, ...] = ()
    """Number, for each rank, of the first process on its node among all processes; empty: not known."""
    whole: bool = True
    """True if these are all the ranks of `handle`."""
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context around `start_…`, where several threads start collectives: see sync/turns.py."""

    @classmethod
    def beside(cls, place: RankInfo, handle: ProcessGroup | None, device: torch.device) -> Group:
        """A group of the ranks of `handle` (None: all), which is not ours, with connections of its own. To be called by
        all of them. `device`: of the gradients."""
        ranks = dist.get_process_group_ranks(handle)
        by_nccl = device.type == "cuda" and "nccl" in dist.get_backend(handle)
        whole = cls(
            place=replace(place, rank=dist.get_rank(), world_size=dist.get_world_size()),
            backend="nccl" if by_nccl else "gloo",
            device=device if by_nccl else torch.device("cpu"),
        )
        made = whole.subgroup(ranks)
        assert made is not None  # noqa: S101  # this rank is one of them
        made.connect()
        return made.aware_of_nodes()

    def aware_of_nodes(self) -> Group:
        """The same group, which knows which ranks share a node. To be called by all of them."""
        own = self.ranks[self.place.rank] if self.ranks else self.place.rank
        first = self.all_gather_scalar(float(own - self.place.local_rank))
        return replace(self, nodes=tuple(map(int, first)))

    @property
    def alone(self) -> bool:
        return self.place.world_size == 1

    @heartbeat.exchange("all_reduce")
    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over all ranks."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.handle)
        return [float(number) for number in tensor.tolist()]

    def all_gather_scalar(self, number: float) -> list[float]:
        """Every rank's number, by rank."""
        own = [0.0] * self.place.world_size
        own[self.place.rank] = number
        return self.all_reduce_sum(own)

    @heartbeat.exchange("all_reduce")
    def all_reduce_min(self, numbers: Sequence[float]) -> list[float]:
        """Each number as it is on the rank where it is smallest."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self.handle)
        return [float(number) for number in tensor.tolist()]

    @heartbeat.exchange("all_reduce")
    def all_gather_rows(self, mine: Tensor, total: int) -> Tensor:
        """(total, columns): every rank's rows, one rank's after another's, each rank having its share of `total`."""
        if self.alone:
            return mine
        columns = torch.tensor([mine.shape[1]])
        dist.all_reduce(columns, dist.ReduceOp.MAX, group=self.handle)  # a rank without a row does not know
        whole = torch.zeros(total, int(columns), dtype=mine.dtype)
        first = total * self.place.rank // self.place.world_size
        whole[first : first + len(mine), : mine.shape[1]] = mine
        dist.all_reduce(whole, group=self.handle)
        return whole

    @heartbeat.exchange("all_reduce")
    def all_reduce(self, tensor: Tensor) -> None:
        """Put into `tensor` the sum over all ranks, wherever it lies."""
        if self.alone:
            return
        sent = tensor.to(self.device)
        dist.all_reduce(sent, group=self.handle)
        if sent is not tensor:
            tensor.copy_(sent)

    def sum_soon(self, tensor: Tensor) -> Future[Tensor]:
        """Begins to put into `tensor`, wherever it lies, the sum over all ranks; done when the future is."""
        return sum_soon(tensor, self.handle)

    def all_to_all(self, sent: Tensor) -> Tensor:
        """(ranks, …) of like shape: row r goes to rank r, and row r of the answer came from there."""
        return self.start_all_to_all(sent)()

    def all_gather(self, sent: Tensor) -> Tensor:
        """(ranks, …): what each rank has sent."""
        return self.start_all_gather(sent)()

    def start_all_to_all(self, sent: Tensor) -> Arriving:
        """`all_to_all`, without waiting for the others."""
        everyone = range(self.place.world_size)
        return self.start_rows(sent, everyone, everyone, named="all_to_all")

    def start_all_gather(self, sent: Tensor) -> Arriving:
        """`all_gather`, without waiting for the others."""
        if self.device.type == "cuda" and self.whole:
            return _start_nccl_gather(self, sent)
        everyone = range(self.place.world_size)
        return self.start_rows(sent.expand(len(everyone), *sent.shape), everyone, everyone, named="all_gather")

    def start_rows(
        self, sent: Tensor, to: Sequence[int], origins: Sequence[int], *, named: str = "send_rows"
    ) -> Arriving:
        """Row i of `sent` goes to rank `to[i]`, and row j of the answer comes from rank `origins[j]`; both ascending.
        To be called by all ranks, also by those without a row. `named`: in the rank's heartbeat."""
        everyone = self.ranks or range(self.place.world_size)
        mine = sent.to(self.device)
        received = torch.empty(len(origins), *mine.shape[1:], dtype=mine.dtype, device=mine.device)
        targets, sources = [everyone[rank] for rank in to], [everyone[rank] for rank in origins]
        with heartbeat.exchange(named):
            work = send_rows(everyone[self.place.rank], mine, targets, received, sources, self.handle)
        return arriving(named, work, received, sent)

    @heartbeat.exchange("reduce_scatter")
    def reduce_scatter(self, sent: Tensor) -> Tensor:
        """(ranks, …): of row r the sum over all ranks goes to rank r; the answer is this rank's row.

        RuntimeError: this backend has no such collective.
        """
        if self.alone:
            return sent[0]
        mine = sent.to(self.device)
        received = torch.empty_like(mine[0])
        _reduce_scatter(received.flatten(), mine.flatten(), group=self.handle)
        return received.to(sent.device)

    def shift(self, tensor: Tensor, by: int) -> float:
        """Every rank sends `tensor` to the `by`-th after it: seconds until this rank has what is sent to it."""
        ranks, rank = self.place.world_size, self.place.rank
        self.barrier()
        return self._pass_on(tensor, to=(rank + by) % ranks, origin=(rank - by) % ranks)[1]

    def swap(self, tensor: Tensor, peer: int) -> tuple[Tensor, float]:
        """This rank's `tensor` for the peer's of like shape, both ways at once: what came, and seconds until then.
        To be called by these two alone, once all ranks have had a collective in common."""
        return self._pass_on(tensor, to=peer, origin=peer)

    @heartbeat.exchange("send_and_receive")
    def _pass_on(self, tensor: Tensor, *, to: int, origin: int) -> tuple[Tensor, float]:
        everyone = self.ranks or range(self.place.world_size)
        sent = tensor.to(self.device)
        received = torch.empty_like(sent)
        began = time.perf_counter()
        # nccl answers with one work for both, gloo with one for each.
        receiving, *sending = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, received, everyone[origin], self.handle),
                dist.P2POp(dist.isend, sent, everyone[to], self.handle),
            ]
        )
        receiving.wait()
        if self.device.type == "cuda":  # there, waiting only puts it in line
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - began
        for work in sending:
            work.wait()
        return received.to(tensor.device), seconds

    def all_gather_text(self, text: str) -> list[str]:
        """Every rank's, by rank; of each the first 64 bytes."""
        if self.alone:
            return [text]
        letters = torch.zeros(1, 64, dtype=torch.uint8)
        mine = text.encode()[:64]
        letters[0, : len(mine)] = torch.tensor(list(mine), dtype=torch.uint8)
        rows = self.all_gather_rows(letters, self.place.world_size)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]

    @heartbeat.exchange(heartbeat.RESTING)
    def wait_finished(self) -> None:
        """Wait until the others, who train without this rank, have ended."""
        assert self.store is not None  # noqa: S101  # a rank alone leaves no other out
        while True:
            try:
                self.store.wait([OVER], timedelta(seconds=60))
            except dist.DistStoreError:  # not yet
                continue
            except RuntimeError as error:
                raise TrainerError(f"{self.place.name} was left out, and the others are gone: {error}") from error
            return

    def mark_finished(self) -> None:
        """Tell those who were left out that the training has ended."""
        if self.store is not None:
            self.store.set(OVER, "1")

    def clones(self, number: int) -> list[Group]:
        """The same ranks for `number` threads that start collectives at once. To be called by all of them.

        By gloo each thread has connections of its own. By NCCL they share one communicator, made and connected here and
        not by a thread in the first step; its collectives are to be started in `turn`s.
        """
        by_nccl = self.device.type == "cuda"
        made = [self._of(range(self.place.world_size)) for _ in range(1 if by_nccl else number)]
        branches = [group for group in made if group is not None]  # this rank is one of all
        for group in branches:
            group.connect()
        return [branches[at % len(branches)] for at in range(number)]

    def connect(self) -> None:
        """Make NCCL's connections now, by all ranks at once: it makes them at a collective's first use, for which
        others would wait in a measurement or in the first step."""
        if self.device.type != "cuda":
            return
        probe = torch.ones(self.place.world_size, 1, device=self.device)
        self.all_to_all(probe)
        self.all_gather(probe[0])
        self.all_reduce(probe)
        with heartbeat.exchange("connect"):
            torch.cuda.synchronize(self.device)

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """The group of these ranks alone, None for the others. To be called by all of these."""
        return self._of(sorted(ranks))

    @heartbeat.exchange("new_group")
    def _of(self, ranks: Sequence[int]) -> Group | None:
        everyone = self.ranks or range(self.place.world_size)
        chosen = tuple(everyone[rank] for rank in ranks)
        if self.place.rank not in ranks:
            return None
        timeout = timedelta(seconds=self.place.pg_timeout_s)
        # Those who are left out of a run do not take part in making its groups: see process_group.join.
        backend = BOTH if self.backend == "nccl" else self.backend
        handle = dist.new_group(list(chosen), timeout, backend, use_local_synchronization=True)
        place = replace(self.place, rank=ranks.index(self.place.rank), world_size=len(ranks))
        backend = self.backend if len(ranks) > 1 else "none"
        nodes = tuple(self.nodes[rank] for rank in ranks) if self.nodes else ()
        return replace(self, place=place, backend=backend, handle=handle, ranks=chosen, nodes=nodes)

    def part(self, ranks: Sequence[int]) -> Group:
        """These ranks, one of which is this one, by the connections of this group. For `start_…` only; with NCCL the
        other ranks call `start_rows` without a row at the same time."""
        everyone = self.ranks or range(self.place.world_size)
        place = replace(self.place, rank=ranks.index(self.place.rank), world_size=len(ranks))
        return replace(self, place=place, ranks=tuple(everyone[rank] for rank in ranks), nodes=(), whole=False)

    @heartbeat.exchange("broadcast")
    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's values into everybody's `tensor`, wherever it lies."""
        if self.alone:
            return
        sent = tensor.cpu()
        dist.broadcast(sent, src=self.ranks[0] if self.ranks else 0, group=self.handle)
        if sent is not tensor:
            tensor.copy_(sent)

    def barrier(self) -> None:
        self.all_reduce_sum([0.0])

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
        differing = self.differing(hashlib.sha256(text.encode()).digest())
        ranks = [str(rank) for rank, differs in enumerate(differing) if differs]
        if ranks:
            raise ConfigurationError(f"rank {', '.join(ranks)} has other {subject} than rank 0: make them the same")

    def differing(self, digest: bytes) -> list[float]:
        """Mark each rank by 1 where its digest is not rank 0's."""
        mine = torch.tensor(list(digest), dtype=torch.int64)
        theirs = mine.clone()
        self.broadcast(theirs)
        return self.all_gather_scalar(float(not torch.equal(mine, theirs)))


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name since torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@heartbeat.exchange("all_gather")
def _start_nccl_gather(group: Group, sent: Tensor) -> Arriving:
    mine = sent.to(group.device)
    received = torch.empty(group.place.world_size, *mine.shape, dtype=mine.dtype, device=mine.device)
    rows = received.flatten(0, 1) if mine.dim() else received
    return arriving("all_gather", [_all_gather(rows, mine, group=group.handle, async_op=True)], received, sent)
