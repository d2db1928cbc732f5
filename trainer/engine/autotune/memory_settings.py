"""Settings that trade time for memory, in the order of their cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from trainer.config import TrainOptions
from trainer.models.layers import Recompute

Chunk = int | Literal["auto"]
RECOMPUTE_COST: Mapping[str, Mapping[Recompute, float]] = {
    "gpu": {0: 1.0, "selective": 1.08, 2: 1.17, 1: 1.33},
    "cpu": {0: 1.0, 2: 1.20, 1: 1.45},
}
"""Time of a step, from the most memory to the least. On a CPU measured (docs/adr/0035), where `selective` needs more
time and more memory than 2. On a GPU by the work: a forward pass is a third of a step's; what `selective` repeats is
an estimate."""
CHUNK_COST = 1.01
"""Time of a step with the next smaller chunk of the loss; an estimate."""
CPU_PASS = 0.15
"""Time of a pass beside its samples, in samples: with it smaller micro-batches come before gradient checkpointing, as
in `smaller` of contract/cost_model/memory.py."""
MOST_PASS = 64.0
"""The same on a GPU at most, where a pass takes as long with one sample as with two."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Settings of one rank."""

    recompute: Recompute | None
    """None: the model has no blocks that can be computed again, or the user has said which."""
    loss_chunk: Chunk | None
    """None: as for `recompute`."""
    micro_batch: int

    def __str__(self) -> str:
        parts = [f"micro-batch {self.micro_batch}"]
        if self.recompute is not None:
            parts.insert(0, f"checkpointing {self.recompute}")
        if self.loss_chunk is not None:
            parts.insert(-1, f"loss chunk {self.loss_chunk}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class MemoryChoices:
    """Values of each setting, from the most memory to the least."""

    recompute: tuple[Recompute | None, ...] = (None,)
    loss_chunk: tuple[Chunk | None, ...] = (None,)
    micro_batch: tuple[int, ...]
    recompute_cost: Mapping[Recompute, float] = field(default_factory=dict)

    @property
    def least(self) -> MemorySettings:
        return MemorySettings(
            recompute=self.recompute[-1], loss_chunk=self.loss_chunk[-1], micro_batch=self.micro_batch[-1]
        )

    @property
    def several(self) -> bool:
        """Whether there is more to choose than the micro-batch."""
        return len(self.recompute) * len(self.loss_chunk) > 1

    def by_time(self, pass_samples: float) -> list[MemorySettings]:
        """All combinations, the fastest first. `pass_samples`: time of a pass beside its samples, in samples."""
        pairs = [
            (self._time(one, pass_samples), MemorySettings(recompute=one[0], loss_chunk=one[1], micro_batch=one[2]))
            for one in product(self.recompute, self.loss_chunk, self.micro_batch)
        ]
        return [settings for _, settings in sorted(pairs, key=lambda pair: pair[0])]

    def _time(self, one: tuple[Recompute | None, Chunk | None, int], pass_samples: float) -> float:
        again = 1.0 if one[0] is None else self.recompute_cost.get(one[0], 1.0)
        return again * float(CHUNK_COST ** self.loss_chunk.index(one[1])) * (1 + pass_samples / one[2])

    def needs_as_much(self, one: MemorySettings, other: MemorySettings) -> bool:
        """Whether `one` needs at least the memory of `other`: no setting of it saves more."""
        return (
            self.recompute.index(one.recompute) <= self.recompute.index(other.recompute)
            and self.loss_chunk.index(one.loss_chunk) <= self.loss_chunk.index(other.loss_chunk)
            and one.micro_batch >= other.micro_batch
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    state: Literal["fp32", "bf16", "int8"]
    offload: bool

    def __str__(self) -> str:
        return f"optimizer state {self.state}" + " in CPU memory" * self.offload


def optimizers(options: TrainOptions) -> list[OptimizerSettings]:
    """Formats of the optimizer's state that the user leaves open, the fastest first, each with less memory than the one
    before, on CPU ranks too. CPU memory comes last, and with the smallest format: it is reached over PCIe, in float32
    by four times the bytes (docs/adr/0036)."""
    states: tuple[Literal["fp32", "bf16", "int8"], ...] = ("fp32", "bf16", "int8")
    if options.optimizer_state != "fp32" or by_user(options, "optimizer_state"):
        states = (options.optimizer_state,)
    found = [OptimizerSettings(state=state, offload=options.optimizer_offload) for state in states]
    open_ = not options.optimizer_offload and not by_user(options, "optimizer_offload")
    if open_ and options.optimizer != "muon":
        found.append(OptimizerSettings(state=states[-1], offload=True))
    return found


def first_that_fits(
    choices: MemoryChoices, pass_samples: float, fits: Callable[[MemorySettings], bool]
) -> tuple[MemorySettings | None, list[MemorySettings]]:
    """The fastest settings that fit, and faster ones that were tried and do not. Those that need at least as much as
    one that does not fit are not tried."""
    failed: list[MemorySettings] = []
    for one in choices.by_time(pass_samples):
        if any(choices.needs_as_much(one, other) for other in failed):
            continue
        if fits(one):
            return one, failed
        failed.append(one)
    return None, failed


def by_user(options: TrainOptions, name: str) -> bool:
    return name in options.chosen and options.chosen[name].by_user
