"""All ranks together, and what they tell each other: the one place that calls torch's collectives."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import Store

from trainer.config import Place
from trainer.errors import ConfigurationError, TrainerError
from trainer.survive import beat

OVER = "over"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that train together; alone, every collective gives back what it got."""

    place: Place
    backend: str
    """gloo, nccl, or none for a rank alone."""
    device: torch.device
    """Where tensors must lie to be sent."""
    handle: ProcessGroup | None = None
    """torch's own, where it is not the one of all processes."""
    ranks: tuple[int, ...] = ()
    """Each rank's number among all processes, where that is another."""
    store: Store | None = None
    """What all processes share besides collectives."""

    @property
    def alone(self) -> bool:
        return self.place.world_size == 1

    @beat.exchange("all_reduce")
    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over all ranks."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, group=self.handle)
        return [float(number) for number in tensor.tolist()]

    def each(self, number: float) -> list[float]:
        """Every rank's number, by rank."""
        own = [0.0] * self.place.world_size
        own[self.place.rank] = number
        return self.sum(own)

    @beat.exchange("all_reduce")
    def least(self, numbers: Sequence[float]) -> list[float]:
        """Each number as it is on the rank where it is smallest."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self.handle)
        return [float(number) for number in tensor.tolist()]

    @beat.exchange("all_reduce")
    def rows(self, mine: Tensor, total: int) -> Tensor:
        """(total, columns): every rank's rows, one rank's after another's, each rank having its share of `total`."""
        if self.alone:
            return mine
        columns = torch.tensor([mine.shape[1]], device=self.device)
        dist.all_reduce(columns, dist.ReduceOp.MAX, group=self.handle)  # a rank without a row does not know
        whole = torch.zeros(total, int(columns), dtype=mine.dtype, device=self.device)
        first = total * self.place.rank // self.place.world_size
        whole[first : first + len(mine), : mine.shape[1]] = mine
        dist.all_reduce(whole, group=self.handle)
        return whole.cpu()

    @beat.exchange("all_reduce")
    def all_reduce(self, tensor: Tensor) -> None:
        """Into `tensor` the sum over all ranks, wherever it lies."""
        if self.alone:
            return
        sent = tensor.to(self.device)
        dist.all_reduce(sent, group=self.handle)
        if sent is not tensor:
            tensor.copy_(sent)

    @beat.exchange("all_to_all")
    def all_to_all(self, sent: Tensor) -> Tensor:
        """(ranks, …) of like shape: row r goes to rank r, and row r of the answer came from there."""
        mine = sent.to(self.device)
        received = torch.empty_like(mine)
        if self.backend == "gloo":
            self._straight(list(mine), received)
        else:
            dist.all_to_all_single(received, mine, group=self.handle)
        return received.to(sent.device)

    @beat.exchange("all_gather")
    def all_gather(self, sent: Tensor) -> Tensor:
        """(ranks, …): what each rank has sent."""
        mine = sent.to(self.device)
        received = torch.empty(self.place.world_size, *mine.shape, dtype=mine.dtype, device=mine.device)
        if self.backend == "gloo":
            self._straight([mine] * self.place.world_size, received)
        else:
            _all_gather(received.flatten(0, 1) if mine.dim() else received, mine, group=self.handle)
        return received.to(sent.device)

    def _straight(self, sent: Sequence[Tensor], received: Tensor) -> None:
        """`sent[r]` to rank r, and what comes from there into `received[r]`, all at once and both ways.

        gloo's own all-to-all and all-gather leave a link idle in one direction for part of the time: they reach 58 to
        73 % of a gigabit link between five nodes and half of it between two, this 80 to 98 % (docs/benchmarks.md).
        """
        ranks, own = self.place.world_size, self.place.rank
        everyone = self.ranks or range(ranks)
        peers = [(own + by) % ranks for by in range(1, ranks)]
        # Those who wait to receive before anybody sends need no buffer in between.
        coming = [dist.irecv(received[rank], everyone[rank], self.handle) for rank in reversed(peers)]
        going = [dist.isend(sent[rank], everyone[rank], self.handle) for rank in peers]
        received[own] = sent[own]
        for work in [*coming, *going]:
            if work is not None:
                work.wait()

    @beat.exchange("reduce_scatter")
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

    @beat.exchange("send_and_receive")
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

    def texts(self, text: str) -> list[str]:
        """Every rank's, by rank; of each the first 64 bytes."""
        if self.alone:
            return [text]
        letters = torch.zeros(64, dtype=torch.uint8)
        mine = text.encode()[:64]
        letters[: len(mine)] = torch.tensor(list(mine), dtype=torch.uint8)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in self.all_gather(letters)]

    @beat.exchange(beat.RESTING)
    def outlast(self) -> None:
        """Wait until the others, who train without this rank, have ended."""
        assert self.store is not None  # noqa: S101  # a rank alone leaves nobody out
        while True:
            try:
                self.store.wait([OVER], timedelta(seconds=60))
            except dist.DistStoreError:  # not yet
                continue
            except RuntimeError as error:
                raise TrainerError(f"{self.place.name} was left out, and the others are gone: {error}") from error
            return

    def over(self) -> None:
        """Tell those who were left out that the training has ended."""
        if self.store is not None:
            self.store.set(OVER, "1")

    def branch(self) -> Group:
        """The same ranks over connections of their own, for a thread of its own: within one group all ranks must ask
        for the same collectives in the same order. To be called by all of them."""
        group = self._of(range(self.place.world_size))
        assert group is not None  # noqa: S101  # this rank is one of all
        return group

    def only(self, ranks: Sequence[int]) -> Group | None:
        """The group of these ranks alone, None for the others. To be called by all of these."""
        return self._of(sorted(ranks))

    @beat.exchange("new_group")
    def _of(self, ranks: Sequence[int]) -> Group | None:
        everyone = self.ranks or range(self.place.world_size)
        chosen = tuple(everyone[rank] for rank in ranks)
        if self.place.rank not in ranks:
            return None
        timeout = timedelta(seconds=self.place.pg_timeout_s)
        # Those who are left out of a run do not take part in making its groups.
        handle = dist.new_group(list(chosen), timeout, self.backend, use_local_synchronization=True)
        place = replace(self.place, rank=ranks.index(self.place.rank), world_size=len(ranks))
        backend = self.backend if len(ranks) > 1 else "none"
        return replace(self, place=place, backend=backend, handle=handle, ranks=chosen)

    @beat.exchange("broadcast")
    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's values into everybody's `tensor`, wherever it lies."""
        if self.alone:
            return
        sent = tensor.to(self.device)
        dist.broadcast(sent, src=self.ranks[0] if self.ranks else 0, group=self.handle)
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
        differing = self._differing(hashlib.sha256(text.encode()).digest())
        ranks = [str(rank) for rank, differs in enumerate(differing) if differs]
        if ranks:
            raise ConfigurationError(f"rank {', '.join(ranks)} has other {subject} than rank 0: make them the same")

    def _differing(self, digest: bytes) -> list[float]:
        """For each rank 1 where its digest is not rank 0's."""
        mine = torch.tensor(list(digest), dtype=torch.int64, device=self.device)
        theirs = mine.clone()
        self.broadcast(theirs)
        return self.each(float(not torch.equal(mine, theirs)))

    def share_weights(self, model: nn.Module) -> None:
        """Rank 0's weights and buffers to all. Built from the same seed they are there already, and half a gigabyte
        need not cross the LAN: a checksum says so."""
        if self.alone:
            return
        state = model.state_dict()
        if not any(self._differing(_checksum(state.values()))):
            return
        for tensor in state.values():
            self.broadcast(tensor)


def _checksum(tensors: Iterable[Tensor]) -> bytes:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.digest()


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name since torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
