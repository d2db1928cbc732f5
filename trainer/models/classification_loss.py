"""Cross entropy over classes, with soft labels, label smoothing, focal loss and class weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.data.to_device import constant


@dataclass(frozen=True, kw_only=True)
class ClassificationLoss:
    smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    gamma: float = 0.0
    """Focal loss (Lin et al. 2017): the weight of each class's part is (1 - p)^gamma; 0 is cross entropy."""
    weights: tuple[float, ...] | None = None
    """Weight of each class. Their mean over the training samples should be 1: the sum is divided by the samples."""

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """Summed over samples. `target` is (n, classes), each row a distribution."""
        target = target * (1 - self.smoothing) + self.smoothing / target.shape[1]
        log_p = F.log_softmax(logits.float(), 1)
        if self.gamma:
            # Not quite 0 for a certain answer: below gamma 1 the slope there is infinite.
            target = target * (-torch.expm1(log_p)).clamp_min(1e-8) ** self.gamma
        if self.weights is not None:
            target = target * constant(self.weights, target.device)
        return -(target * log_p).sum()


def soft_labels(labels: Tensor, classes: int) -> Tensor:
    """(n, classes): one-hot labels."""
    return F.one_hot(labels, classes).float()


def balanced(counts: list[int]) -> tuple[float, ...]:
    """Weights that give all classes the same total; their mean over all samples is 1."""
    total, present = sum(counts), sum(count > 0 for count in counts)
    return tuple(total / (present * count) if count else 0.0 for count in counts)
