"""Gradients averaged in each step as they are: torch's DistributedDataParallel."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.engine.group import Group
from trainer.engine.sync.strategy import Sync

FIRST, LARGEST = 1 << 20, 25 << 20
"""Bytes after which DDP closes its first bucket, and each further one."""


def bucket_sizes(parameters: Iterable[nn.Parameter]) -> list[int]:
    """Values in each of DDP's buckets, in the order in which a backward pass fills them."""
    sizes = [0]
    for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        if sizes[-1] * 4 >= (LARGEST if len(sizes) > 1 else FIRST):
            sizes.append(0)
        sizes[-1] += parameter.numel()
    return sizes


class Ddp(Sync):
    def __init__(self, model: nn.Module, group: Group, *, static_graph: bool) -> None:
        """`static_graph`: every step's one backward pass reaches the same weights, on all ranks."""
        self.name = "fp32"
        # Once DDP has seen in which order gradients come it lays its buckets out anew; the first pass of a static graph
        # tells it nothing yet.
        self.rehearsals = 2 if static_graph else 1
        # Buffers are sent before an evaluation, by `evaluate`. DDP sends them in a forward pass, and a rank whose
        # memory failed it and which tries again would wait there for an answer from peers that are further on.
        self.model = self._ddp = DistributedDataParallel(
            model, process_group=group.handle, gradient_as_bucket_view=True, static_graph=static_graph,
            init_sync=False, **_BUFFERS_STAY,
        )  # fmt: skip

    def gradients(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self._ddp.no_sync()


class Alone(Sync):
    """One rank: there is nobody to keep in common with."""

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
