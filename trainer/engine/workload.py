"""Interface that the engine requires of a workload. Everything else about training is the engine's own.

A workload is one subclass: its model, its data, and how a batch becomes a loss. What is not overridden below serves a
classifier or any other model whose loss is one mean over samples.

Importing this needs Python alone, not torch nor numpy: a workload's module also declares its options, which the
controller checks before it starts anything (trainer/check.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.data.batch import Batch, BatchRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from trainer.data.order import Indices, Order

Outputs: TypeAlias = "NDArray[np.float64]"
"""(samples, columns): what `judge` keeps of each validation sample for `quality`."""


class Workload(ABC):
    name: str
    unit: str = "samples"
    """Unit that speed is counted in, as people read it: `tokens`, `images`."""
    terms: Mapping[str, float] = {"loss": 1.0}
    """The loss is the weighted sum of these, each a mean over its own targets (a head, a penalty)."""
    compile_gain: float = 0.05
    """How much faster torch.compile is known to make a step on a CPU: what `--compile auto` reckons with."""

    model: nn.Module
    identity: Mapping[str, str | int]
    """Properties that a checkpoint must have in common with this run: shapes, tokenizer, classes."""
    attachments: Mapping[str, Path] = {}
    """Files that a checkpoint carries along, so that it can be used where the data is not."""
    train_samples: int
    validation_samples: int = 0
    streamed: bool = False
    """Whether training samples cannot be asked for by number: they come from `stream`, not from `batch`."""

    @abstractmethod
    def batch(self, request: BatchRequest) -> Batch:
        """The samples, on the CPU; the first dimension of each tensor is theirs. May run in a worker process."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """(terms,): each term summed over the batch's targets. `model` is `self.model`, wrapped for this run."""

    def targets(self, split: str, indices: Indices) -> tuple[float, ...]:
        """For each term how many targets these samples have, or the sum of their weights: what its sum is divided by.
        Known without their content, so that every rank can count the whole step's without asking the others."""
        return (float(len(indices)),) * len(self.terms)

    def samples(self, batch: Batch) -> int:
        """How many a batch holds, where the first dimension of its first tensor is not theirs."""
        return len(batch[0])

    def units(self, indices: Indices) -> int:
        """How many of `unit` these training samples are."""
        return len(indices)

    def order(self, seed: int) -> Order:
        """In which order training samples come."""
        from trainer.data.order import Shuffled

        return Shuffled(self.train_samples, seed)

    def stream(self, rank: int, world_size: int, skip: int, share: int) -> Iterable[Batch]:
        """This rank's samples one by one, in a dataset that torch's DataLoader takes, without end, after `skip` samples
        of this rank. Worker processes take turns: each reads the `share` samples of one step, whatever the
        micro-batch, so that the position alone says how far each of them has come."""
        raise TypeError(f"{self.name} says that its data is streamed, and so needs a `stream` of its own")

    @property
    def stream_workers(self) -> int | None:
        """How many processes can read `stream`, where the data itself says so (its number of files). None: measured."""
        return None

    def collate(self, samples: list[Batch]) -> Batch:
        """Samples of `stream` to a batch."""
        import torch

        return tuple(torch.stack(parts) for parts in zip(*samples, strict=True))

    # ── Validation ────────────────────────────────────────────────────────────────────────────────

    def judge(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(terms,) loss sums as in `losses`, and (samples, columns) of what `quality` needs to know of each sample."""
        import torch

        return self.losses(model, batch), torch.empty(self.samples(batch), 0)

    def quality(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        """The field's own measures. `outputs` are those of all `indices`, in this order, of all ranks."""
        return {}

    def picture(self, outputs: Outputs, indices: Indices, folder: Path) -> list[Path]:
        """Files that show the quality: a table per class, a confusion matrix. Drawn on rank 0 where it is the best."""
        return []

    def sample(self, prompt: str) -> str:
        """Something a person can judge the model by, written after `prompt`; empty where a model does not write."""
        return ""

    # ── What only some need ───────────────────────────────────────────────────────────────────────

    def parameter_groups(self) -> list[dict[str, Any]] | None:
        """For the optimizer, where the usual is not right: matrices decay, biases and norms do not."""
        return None
