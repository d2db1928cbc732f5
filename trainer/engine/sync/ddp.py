"""Gradients averaged in each step as they are: torch's DistributedDataParallel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainer.engine.group import Group
from trainer.engine.sync.strategy import Sync

FIRST, LARGEST = 1 << 20, 25 << 20
"""Bytes after which DDP closes its first bucket, and each further one."""


def ddp_buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """DDP's buckets, in the order in which a backward pass fills them."""
    buckets: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        if size * 4 >= (LARGEST if len(buckets) > 1 else FIRST):
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel()
    return buckets


class Ddp(Sync):
    def __init__(self, model: nn.Module, group: Group, *, static_graph: bool) -> None:
        """`static_graph`: every step's one backward pass reaches the same weights, on all ranks."""
        self.name = "fp32"
        # Once DDP has seen in which order gradients come it rebuilds its buckets; the first pass of a static graph
        # tells it nothing yet.
        self.warm_up_exchanges = 2 if static_graph else 1
        # Buffers are sent before an evaluation, by `evaluate`. DDP sends them in a forward pass, and a rank whose
        # memory failed it and which tries again would wait there for an answer from peers that are further on.
        self.model = self._ddp = DistributedDataParallel(
            model, process_group=group.handle, gradient_as_bucket_view=True, static_graph=static_graph,
            init_sync=False, **_BUFFERS_STAY,
        )  # fmt: skip
        self._group, self._parameters = group, [one for one in model.parameters() if one.requires_grad]
        self._ddp.register_comm_hook(None, lambda _, bucket: self._send(bucket))
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._reaches(number))  # type: ignore[no-untyped-call]  # torch's own gap
        self._begin(again=False)

    def gradients(self, *, last: bool) -> AbstractContextManager[None]:
        self._sends = last and not self._again
        return nullcontext() if self._sends else self._ddp.no_sync()

    def interrupted(self) -> None:
        means = []
        for flat, arrived in self._sent:
            arrived.wait()
            means.append(flat.to("cpu", copy=True))
        if self._sends and not self._all_sent:  # until all buckets are full DDP takes no other pass
            self._idle = True
            if not self._reached:  # perhaps the forward pass has failed, after which DDP would have made ready
                self._ddp.reducer.prepare_for_backward([])
            self._reach(self._missed)
        self._begin(again=True, means=means or self._means)

    def finish(self) -> None:
        """DDP sends its buckets in their order, each when the backward pass has reached all of its weights. Where a
        weight took no part in it, or this rank has computed the step again, that is made up for here: the other ranks
        wait for every bucket."""
        reducer = self._ddp.reducer
        if self._again:
            reducer.prepare_for_backward([])
            self._reach(self._parameters)
        elif not self._all_sent:
            self._reach(self._missed)
        reducer._rebuild_buckets()  # once, and with a collective: here all ranks do it at the same time
        self._begin(again=False)

    def _begin(self, *, again: bool, means: Sequence[Tensor] = ()) -> None:
        self._again = again
        """True if this rank computes the step again, all by itself at first."""
        self._means = means
        """Means of the buckets that were sent before."""
        self._sends = self._idle = self._all_sent = False
        self._sent: list[tuple[Tensor, Future[Tensor]]] = []
        self._reached: set[int] = set()

    @property
    def _missed(self) -> list[nn.Parameter]:
        return [one for number, one in enumerate(self._parameters) if number not in self._reached]

    def _reaches(self, number: int) -> Callable[[Tensor], None]:
        def hook(_parameter: Tensor) -> None:
            if self._sends:
                self._reached.add(number)

        return hook

    def _reach(self, parameters: Sequence[nn.Parameter]) -> None:
        """Reach the weights as a backward pass that adds nothing to their gradients."""
        torch.autograd.backward(parameters, [one.new_zeros(()).expand_as(one) for one in parameters])

    def _send(self, bucket: Any) -> Future[Tensor]:
        """DDP's own sum, and an account of it."""
        flat, number = bucket.buffer(), bucket.index()
        if self._idle:
            return _done(flat)
        if number < len(self._means):
            return _done(flat.copy_(self._means[number]))
        arrived = self._group.sum_soon(flat.div_(self._group.place.world_size))
        self._sent.append((flat, arrived))
        self._all_sent = bucket.is_last()
        return arrived


def _done(tensor: Tensor) -> Future[Tensor]:
    done: Future[Tensor] = Future(devices=[tensor.device] if tensor.is_cuda else None)
    done.set_result(tensor)
    return done


class Alone(Sync):
    """One rank: there are no others to synchronize with."""

    def __init__(self, model: nn.Module) -> None:
        self.name = "none"
        self.model = model

    def gradients(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  # nothing is ever sent
        return nullcontext()


_BUFFERS_STAY: dict[str, Any] = {
    next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")  # since torch 2.13, and before
        if name in inspect.signature(DistributedDataParallel).parameters
    ): False
}
