"""What the engine asks of a workload. Everything else about training is the engine's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from trainer.data.order import Indices

Batch = tuple[Tensor, ...]


class Workload(Protocol):
    name: str
    model: nn.Module
    identity: Mapping[str, str | int]
    """What a checkpoint must have in common with this run: shapes, tokenizer."""
    attachments: Mapping[str, Path]
    """Files that a checkpoint carries along, so that it can be used where the data is not."""
    train_samples: int
    validation_samples: int

    def batch(self, split: str, indices: Indices) -> Batch:
        """The samples, on the CPU."""
        ...

    def targets(self, split: str, indices: Indices) -> int:
        """How many predictions these samples ask for: what the mean of the loss divides by. Known without
        their content, so that every rank can count the whole step's without asking the others."""
        ...

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss summed over the batch's predictions. `model` is `self.model`, wrapped for this run."""
        ...

    def quality(self, loss: float) -> dict[str, float]:
        """The mean validation loss in the field's own measures."""
        ...

    def sample(self, prompt: str) -> str:
        """Something a person can judge the model by."""
        ...
