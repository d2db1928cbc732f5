"""Each rank steps by its own gradients, and from time to time the ranks bring their weights together.

With outer rate 1 and no momentum that is averaging (local SGD: Stich, arXiv:1805.09767); with Nesterov momentum DiLoCo
(Douillard et al., arXiv:2311.08105). In several fragments, each at a time of its own and while training continues, it
is Streaming DiLoCo (arXiv:2501.18512).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from trainer.engine.sync.buckets import Bucket, fragments
from trainer.engine.sync.every_step import EveryStep, Mean, MeanOf, part_of
from trainer.engine.sync.strategy import RankState, State, Sync
from trainer.engine.sync.stream import Sent, Stream


@dataclass(frozen=True, kw_only=True)
class Rounds:
    every: int
    """Steps between two exchanges of the same weights."""
    warmup: int = 0
    """Steps by the mean gradient before the first round."""
    fragments: int = 1
    delay: int = 0
    """Steps that are taken while a fragment is on its way."""
    lr: float = 1.0
    """Learning rate of the outer optimizer."""
    momentum: float = 0.0

    def begins(self, fragment: int, step: int) -> bool:
        offset = self.every * fragment // self.fragments
        return step > self.warmup and (step - self.warmup - offset) % self.every == 0


class LocalSteps(Sync):
    def __init__(self, warm: EveryStep, optimizer: Optimizer, rounds: Rounds, mean_of: MeanOf, step: int) -> None:
        """`warm`: how gradients are averaged in the warm-up; its model is the one that is trained. `step`: taken so
        far."""
        self.name, self.layout = warm.name, warm.layout
        self.model = warm.model
        self._warm, self._group, self._optimizer, self._rounds = warm, warm.group, optimizer, rounds
        self._step = step
        parts = fragments(self.model.parameters(), rounds.fragments)
        # One thread: it starts the fragments' collectives in the order in which all ranks submit them.
        stream, (group,) = Stream(parts[0].device), warm.group.clones(1)
        self._fragments = [_Fragment(part, mean_of(part, group), stream, rounds) for part in parts]

    @property
    def averages(self) -> bool:
        return self._step < self._rounds.warmup

    def gradients(self, *, last: bool) -> AbstractContextManager[None]:
        return self._warm.gradients(last=last and self.averages)

    def interrupted(self) -> None:
        if self.averages:
            self._warm.interrupted()

    def close(self) -> None:
        self._warm.close()

    def finish(self) -> None:
        if self.averages:
            self._warm.finish()
            self.waited = self._warm.waited

    def stepped(self, step: int) -> None:
        self._step = step
        if step <= self._rounds.warmup:
            if step == self._rounds.warmup:
                for fragment in self._fragments:
                    fragment.take_over()
            return
        began = time.perf_counter()
        for number, fragment in enumerate(self._fragments):
            if self._rounds.begins(number, step):
                fragment.begin(step, self.weight)
            fragment.arrive(step - self._rounds.delay)
        self.waited += time.perf_counter() - began

    def finalize(self) -> bool:
        if self._step <= self._rounds.warmup or not any(f.exchanged_at < self._step for f in self._fragments):
            return False
        for fragment in self._fragments:
            fragment.arrive(self._step)
            if self._step > max(self._rounds.warmup, fragment.exchanged_at):
                fragment.begin(self._step, self.weight)
                fragment.arrive(self._step)
            fragment.bucket.set_weights(fragment.common)
        return True

    def shared(self) -> Sequence[Tensor]:
        return super().shared() if self._step <= self._rounds.warmup else [one.common for one in self._fragments]

    @contextmanager
    def use_averaged(self) -> Iterator[None]:
        if self._step <= self._rounds.warmup:
            yield
            return
        own = [fragment.bucket.weights() for fragment in self._fragments]
        for fragment in self._fragments:
            fragment.bucket.set_weights(fragment.common)
        yield
        for fragment, weights in zip(self._fragments, own, strict=True):
            fragment.bucket.set_weights(weights)

    def state(self) -> State:
        state = {f"warm.{name}": tensor for name, tensor in self._warm.state().items()} if self.averages else {}
        for number, fragment in enumerate(self._fragments):
            state |= {f"{number}.{name}": tensor for name, tensor in fragment.state().items()}
        return state | self._moments()

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:
        if self.averages:
            self._warm.restore([part_of(one, "warm.") for one in saved], exact=exact)
        for number, fragment in enumerate(self._fragments):
            fragment.restore([part_of(one, f"{number}.") for one in saved], exact=exact)
        if exact:
            for name, tensor in self._moments().items():
                tensor.copy_(saved[0].state[name])

    def agree(self) -> None:
        for fragment in self._fragments:
            self._group.broadcast(fragment.momentum)

    def _moments(self) -> dict[str, Tensor]:
        """The inner optimizer's state, by name."""
        everyone = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return {
            f"moment.{number}.{name}": value
            for number, parameter in enumerate(everyone)
            for name, value in self._optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        }


@dataclass(frozen=True, kw_only=True)
class _OnTheWay:
    step: int
    weights: Tensor
    """Weights of this rank, when they were sent."""
    moved: Tensor
    """Difference from this rank's weights back to the common ones; once received, the mean of all ranks'."""
    sent: Sent | None


class _Fragment:
    """Weights that are exchanged together: a copy of what is common to all, and how it moves."""

    def __init__(self, bucket: Bucket, mean: Mean, stream: Stream, rounds: Rounds) -> None:
        self.bucket = bucket
        self.common = bucket.weights()
        self.exchanged_at = 0
        self._mean = mean
        self._stream = stream
        self._outer = SGD([self.common], lr=rounds.lr, momentum=rounds.momentum, nesterov=rounds.momentum > 0)
        self.momentum = torch.zeros_like(self.common) if rounds.momentum else torch.empty(0)
        self._outer.state[self.common]["momentum_buffer"] = self.momentum  # zero: the same as none at the first step
        self._on_the_way: _OnTheWay | None = None

    def take_over(self) -> None:
        """This rank's weights are those of all."""
        self.common.copy_(self.bucket.weights())

    def begin(self, step: int, weight: float) -> None:
        """Send how far this rank has moved, weighted by its share of the samples."""
        weights = self.bucket.weights()
        moved = (self.common - weights).mul_(weight)
        self.exchanged_at = step
        self._on_the_way = _OnTheWay(
            step=step, weights=weights, moved=moved, sent=self._stream.submit(lambda: self._mean.mean(moved))
        )

    def arrive(self, latest: int) -> None:
        """Move the common weights, and this rank's with them, by what was sent at step `latest` or before."""
        coming = self._on_the_way
        if coming is None or coming.step > latest:
            return
        if coming.sent:
            coming.sent.result()
        self._on_the_way = None
        self.common.grad = coming.moved
        self._outer.step()
        self.common.grad = None
        here = self.bucket.weights()
        stayed = torch.equal(here, coming.weights)
        # This rank keeps its updates since it sent; if there are none, all ranks get identical bits.
        self.bucket.set_weights(self.common if stayed else here + (self.common - coming.weights))

    def state(self) -> State:
        state = {"weights": self.bucket.weights(), "common": self.common, "momentum": self.momentum}
        coming = self._on_the_way
        if coming:
            if coming.sent:
                coming.sent.result()
            state |= {"sent": torch.tensor(coming.step), "sent_weights": coming.weights, "moved": coming.moved}
        state |= self._mean.state()
        state["exchanged_at"] = torch.tensor(self.exchanged_at)
        return state

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:
        self._mean.restore(saved, exact=exact)
        self.common.copy_(self.bucket.weights())  # what a checkpoint holds are the common weights
        for one in saved[:1]:
            state = {name: tensor.to(self.common.device) for name, tensor in one.state.items()}
            self.momentum.copy_(state["momentum"])
            self.exchanged_at = int(state["exchanged_at"])
            if exact:
                self.bucket.set_weights(state["weights"])
                self.common.copy_(state["common"])
            if exact and "sent" in state:
                self._on_the_way = _OnTheWay(
                    step=int(state["sent"]), weights=state["sent_weights"], moved=state["moved"], sent=None
                )
