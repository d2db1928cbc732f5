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


def send_rows(
    own: int, sent: Tensor, to: Sequence[int], received: Tensor, origins: Sequence[int], handle: ProcessGroup | None
) -> list[Work]:
    """Row i of `sent` to process `to[i]`, and what process `origins[j]` sends into row j of `received`, all at once.
    This process is `own`.

    Processes are named by their number among all, in ascending order. With NCCL every process of `handle` must call
    it, also one without a row: it is an all-to-all in which most rows are missing, by the communicator of `handle`.
    gloo's own all-to-all and all-gather leave a link idle in one direction for part of the time: they reach 58 to 73 %
    of a gigabit link between five nodes and half of it between two, this 80 to 98 % (docs/benchmarks.md).
    """
    if sent.is_cuda:
        everyone = dist.get_process_group_ranks(handle)
        coming, going = ([int(one in chosen) for one in everyone] for chosen in (origins, to))
        return [dist.all_to_all_single(received, sent.contiguous(), coming, going, group=handle, async_op=True)]

    def in_turn(chosen: Sequence[int]) -> list[tuple[int, int]]:
        """(row, process) of the others, those after this process first: so no two begin with the same one."""
        others = [(row, process) for row, process in enumerate(chosen) if process != own]
        return sorted(others, key=lambda one: (one[1] < own, one[1]))

    # Those who wait to receive before anybody sends need no buffer in between.
    work = [dist.irecv(received[row], process, handle) for row, process in reversed(in_turn(origins))]
    work += [dist.isend(sent[row], process, handle) for row, process in in_turn(to)]
    if own in to and own in origins:
        received[origins.index(own)] = sent[to.index(own)]
    return work


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
