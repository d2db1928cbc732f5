"""Interface between the engine and a workload: model, data, loss and metrics. Everything else is the engine's.

A subclass must set `name`, `model`, `identity` and `train_samples`, and define `batch` and `loss_sums`. The other
methods have defaults that fit a classifier, or any other model with one loss that is a mean over samples.

Importing this module needs neither torch nor numpy: the controller imports a workload's module to check its options
before it starts a container (trainer/check.py).
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

    from trainer.data.order import Indices, Order, StepSizes

Outputs: TypeAlias = "NDArray[np.float64]"
"""(samples, columns): values of each validation sample that `evaluate_batch` returns and `metrics` reads."""


class Workload(ABC):
    name: str
    unit: str = "samples"
    """Unit of the reported speed: `tokens`, `images`."""
    loss_weights: Mapping[str, float] = {"loss": 1.0}
    """Weight of each loss term by name. The loss is their weighted sum; each (a head, a penalty) is a mean over its own
    targets."""

    model: nn.Module
    identity: Mapping[str, str | int]
    """Properties that must be equal in a checkpoint and in the run that loads it: shapes, tokenizer, classes."""
    attachments: Mapping[str, Path] = {}
    """Files copied into each checkpoint, so that it can be used without the data."""
    train_samples: int
    validation_samples: int = 0
    held_samples: int | None = None
    """Training samples on this node, if it holds only a part of them; None: all. `train_samples` counts those of all
    nodes, `order` and `batch` number those that are here."""
    step_sizes: StepSizes = ()
    """Samples of a step, for an `order` that groups them; the engine sets it where a run resumes."""
    same_shapes: bool = False
    """True if nearly all training batches have the same shapes: then cuDNN looks for the fastest convolutions, and its
    attention may be taken."""
    streamed: bool = False
    """True if training samples come from `stream`, in its order, instead of from `batch`, by index."""

    @abstractmethod
    def batch(self, request: BatchRequest) -> Batch:
        """Load samples as CPU tensors with samples as their first dimension. May run in a worker process."""

    @abstractmethod
    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute (terms,): each loss term summed over the batch's targets. `model`: `self.model`, wrapped by DDP."""

    def target_counts(self, split: str, indices: Indices) -> tuple[float, ...]:
        """Return the divisor of each loss sum: the number of targets of these samples, or the sum of their weights.
        Computed from the indices alone, so that each rank counts the whole step without communication."""
        return (float(len(indices)),) * len(self.loss_weights)

    def count_samples(self, batch: Batch) -> int:
        """Count a batch's samples. Override where the first tensor's first dimension is not the samples."""
        return len(batch[0])

    def count_units(self, indices: Indices) -> int:
        """Count these training samples in `unit`."""
        return len(indices)

    def flops_per_unit(self) -> float:
        """Floating-point operations of the forward and backward passes for one unit, without what is computed again.
        0: unknown."""
        return 0.0

    @property
    def sharded(self) -> bool:
        return self.held_samples is not None

    @property
    def samples_here(self) -> int:
        """Training samples that this node can load."""
        return self.train_samples if self.held_samples is None else self.held_samples

    def order(self, seed: int) -> Order:
        """Order of the training samples of this node over all epochs."""
        from trainer.data.order import Shuffled

        return Shuffled(self.samples_here, seed)

    def stream(self, rank: int, world_size: int, skip: int, share: int) -> Iterable[Batch]:
        """Create an endless dataset for torch's DataLoader that yields this rank's samples one by one, after its first
        `skip` samples. Worker processes take turns: each reads the `share` samples of one step, for any micro-batch
        size, so that the position alone determines how far each of them has read."""
        raise TypeError(f"{self.name}: `streamed` is set, so the workload must define `stream`")

    @property
    def stream_workers(self) -> int | None:
        """Number of processes that read `stream`, where the data determines it (number of files). None: measured."""
        return None

    def collate(self, samples: list[Batch]) -> Batch:
        """Combine samples of `stream` into a batch."""
        import torch

        return tuple(torch.stack(parts) for parts in zip(*samples, strict=True))

    # ── Validation ────────────────────────────────────────────────────────────────────────────────

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute (terms,) loss sums as `loss_sums`, and (samples, columns) values of each sample for `metrics`."""
        import torch

        return self.loss_sums(model, batch), torch.empty(self.count_samples(batch), 0)

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        """Compute metrics by name: accuracy, F1. `outputs`: one row for each of `indices`, gathered from all ranks."""
        return {}

    def save_report(self, outputs: Outputs, indices: Indices, folder: Path) -> list[Path]:
        """Write files about an evaluation (a table per class, a confusion matrix) and return their paths. Called on
        rank 0 where an evaluation is the best."""
        return []

    def generate(self, prompt: str) -> str:
        """Generate text from `prompt`, as an example for people. Empty where the model generates nothing."""
        return ""

    # ── Optimizer ─────────────────────────────────────────────────────────────────────────────────

    def parameter_groups(self) -> list[dict[str, Any]] | None:
        """Parameter groups of the optimizer. None: weight decay for matrices, none for biases and norms."""
        return None
