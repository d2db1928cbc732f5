"""Transfers under way between all ranks: started by one call, awaited by another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from trainer.agent import heartbeat

Work = dist.Work | None
"""torch's handle of what was started; None where there is nothing to wait for."""
Arriving = Callable[[], Tensor]
"""Waits for what the others send, and returns it."""


def straight(
    sent: Sequence[Tensor], received: Tensor, everyone: Sequence[int], own: int, handle: ProcessGroup | None
) -> list[Work]:
    """`sent[r]` to rank r, and what comes from there into `received[r]`, all at once and both ways.

    `everyone`: the ranks' numbers among all processes. gloo's own all-to-all and all-gather leave a link idle in one
    direction for part of the time: they reach 58 to 73 % of a gigabit link between five nodes and half of it between
    two, this 80 to 98 % (docs/benchmarks.md).
    """
    peers = [(own + by) % len(everyone) for by in range(1, len(everyone))]
    # Those who wait to receive before anybody sends need no buffer in between.
    coming = [dist.irecv(received[rank], everyone[rank], handle) for rank in reversed(peers)]
    going = [dist.isend(sent[rank], everyone[rank], handle) for rank in peers]
    received[own] = sent[own]
    return [*coming, *going]


def arriving(name: str, work: Sequence[Work], received: Tensor, sent: Tensor) -> Arriving:
    """Waits for `work`, and returns what was `received` where `sent` lies. `name`: of the collective, for the rank's
    sign of life."""

    @heartbeat.exchange(name)
    def wait() -> Tensor:
        for one in work:
            if one is not None:
                one.wait()
        return received.to(sent.device)

    return wait


def sum_soon(tensor: Tensor, handle: ProcessGroup | None) -> Future[Tensor]:
    """Begins to put into `tensor` the sum over all ranks of the group; done when the future is."""
    work = dist.all_reduce(tensor, group=handle, async_op=True)
    assert work is not None  # noqa: S101  # this rank is one of the group
    arrived: Future[Tensor] = work.get_future().then(lambda summed: summed.value()[0])
    return arrived
