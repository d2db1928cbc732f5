"""Gradients averaged in each step, encoded, while the backward pass continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from threading import Event, Lock
from typing import Protocol

import torch
from torch import Tensor, nn

from trainer.engine.group import Group
from trainer.engine.sync.buckets import Bucket, by_backward
from trainer.engine.sync.strategy import RankState, State, Sync
from trainer.engine.sync.stream import Sent, Stream
from trainer.engine.sync.turns import Turns

STREAMS = 4
"""Some encode while others' buckets are on their way: of a gigabit link four use 87 to 95 %, two 81 to 91 %."""


class Mean(Protocol):
    """The mean over all ranks of a bucket's flat vector, and what it keeps for the next time."""

    @property
    def collectives(self) -> int:
        """Number of collectives that each mean takes, one after another: the same on all ranks."""

    @property
    def keeps(self) -> bool:
        """True if it keeps anything."""

    def mean(self, flat: Tensor) -> None: ...
    def state(self) -> State: ...
    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None: ...
    def owed(self, saved: Sequence[RankState], count: int) -> Tensor:
        """(count,), float32 on the CPU: what the next mean of the whole bucket would have had of what was kept."""


MeanOf = Callable[[Bucket, Group], Mean]
LossScale = Callable[[], Tensor | None]
"""Factor by which the loss, and so each gradient, is multiplied, on the device; None: by none. It is a power of two."""


class EveryStep(Sync):
    def __init__(
        self, name: str, model: nn.Module, group: Group, mean_of: MeanOf, loss_scale: LossScale = lambda: None
    ) -> None:
        self.name = name
        self._loss_scale = loss_scale
        self.model = model
        self.group = group
        self._buckets = by_backward(model.parameters())
        self.layout = f"buckets of {'+'.join(str(bucket.count) for bucket in self._buckets)}"
        groups = group.clones(min(STREAMS, len(self._buckets)))
        self._streams = [Stream(self._buckets[0].device) for _ in groups]
        self._means = [
            mean_of(bucket, replace(groups[number % len(groups)], turn=partial(self._take_turn, number)))
            for number, bucket in enumerate(self._buckets)
        ]
        self._turns = Turns([mean.collectives for mean in self._means], len(groups))
        self._missing: list[int] = []
        """Gradients that each bucket still waits for; empty where none are to go out."""
        self._sent: list[Sent] = []
        self._lock = Lock()
        self._again = False
        """True if this rank computes the step again: what arrives is not written into its gradients at once."""
        self._read: list[Event] = []
        """Event of each bucket that is sent: its gradients are no longer needed."""
        self._written: list[int] = []
        self._late: dict[int, Tensor] = {}
        """Means of the buckets that were sent before."""
        self._hooks = []
        for number, bucket in enumerate(self._buckets):
            arrived = self._arrived(number)
            for parameter in bucket.parameters:
                hook = parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]  # torch's own gap
                self._hooks.append(hook)

    @contextmanager
    def gradients(self, *, last: bool) -> Iterator[None]:
        sends = last and not self._again
        self._missing = [len(bucket.parameters) for bucket in self._buckets] if sends else []
        yield

    def interrupted(self) -> None:
        self._missing = []
        if self._again:
            return
        with self._lock:
            self._again = True
        for read in self._read:  # never for long: a bucket's turn does not depend on later ones of its thread
            read.wait()
        for number in self._written:
            self._sent[number].result()
            self._late[number] = self._buckets[number].gradients()
        if self._buckets[0].device.type == "cuda":  # before the gradients' memory is used again
            torch.cuda.synchronize(self._buckets[0].device)

    def finish(self) -> None:
        began = time.perf_counter()
        for number in range(len(self._sent), len(self._buckets)):  # a weight without a gradient delays no rank
            self._send(number)
        for sent in self._sent:
            sent.result()
        for number, mean in self._late.items():
            self._buckets[number].set_gradients(mean)
        self._sent, self._read, self._written, self._late = [], [], [], {}
        self._missing, self._again = [], False
        self.waited += time.perf_counter() - began

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for stream in self._streams:
            stream.close()

    def state(self) -> State:
        named = ((number, mean.state().items()) for number, mean in enumerate(self._means))
        return {f"{number}.{name}": tensor for number, items in named for name, tensor in items}

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:
        for number, mean in enumerate(self._means):
            mean.restore([part_of(one, f"{number}.") for one in saved], exact=exact)

    def _arrived(self, number: int) -> Callable[[Tensor], None]:
        def hook(_parameter: Tensor) -> None:
            if not self._missing:
                return
            self._missing[number] -= 1
            # In the order of the buckets, whichever is ready first: the ranks must send alike.
            while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
                self._send(len(self._sent))

        return hook

    def _send(self, number: int) -> None:
        bucket, mean, read = self._buckets[number], self._means[number], Event()
        self._read.append(read)
        before = not self._again

        def average() -> None:
            try:
                flat = bucket.gradients()
                read.set()
                scale = self._loss_scale()
                if scale is not None:  # what a mean keeps for the next step must not depend on this step's scale
                    flat /= scale
                mean.mean(flat)
                if scale is not None:
                    flat *= scale
                with self._lock:
                    if self._again and before:
                        self._late[number] = flat
                    else:
                        bucket.set_gradients(flat)
                        self._written.append(number)
            except BaseException as failure:
                self._turns.fail(failure)
                raise
            finally:
                read.set()

        self._sent.append(self._streams[number % len(self._streams)].submit(average))

    def _take_turn(self, number: int) -> AbstractContextManager[None]:
        return self._turns.take(number)


def part_of(saved: RankState, prefix: str) -> RankState:
    """State that was kept under names with this prefix, which is removed."""
    state = {name.removeprefix(prefix): tensor for name, tensor in saved.state.items() if name.startswith(prefix)}
    return RankState(rank=saved.rank, world_size=saved.world_size, state=state)
