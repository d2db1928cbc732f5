"""The classification loss against torch's cross entropy and the formula of the focal loss: loss and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.trainer.references.conftest import Agrees
from tests.trainer.references.deviation import relative
from trainer.models.classification_loss import ClassificationLoss, balanced, soft_labels

COUNTS = [60, 30, 10, 0, 25, 5, 12]
WEIGHTS = balanced(COUNTS)
LOSSES = {
    "plain": ClassificationLoss(),
    "smoothing 0.1": ClassificationLoss(smoothing=0.1),
    "smoothing 1": ClassificationLoss(smoothing=1.0),
    "class weights": ClassificationLoss(weights=WEIGHTS),
    "smoothing and class weights": ClassificationLoss(smoothing=0.1, weights=WEIGHTS),
    "focal, gamma 0.5": ClassificationLoss(gamma=0.5),
    "focal, gamma 2": ClassificationLoss(gamma=2.0),
    "focal, gamma 5": ClassificationLoss(gamma=5.0),
}


def expected_loss(loss: ClassificationLoss, logits: Tensor, labels: Tensor) -> Tensor:
    if loss.gamma:
        p = logits.softmax(1).gather(1, labels[:, None])
        return ((1 - p) ** loss.gamma * -p.log()).sum()
    weight = torch.tensor(loss.weights) if loss.weights else None
    return F.cross_entropy(logits, labels, weight, reduction="sum", label_smoothing=loss.smoothing)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(name: str, agrees: Agrees) -> None:
    torch.manual_seed(0)
    logits, labels = (torch.randn(64, 7) * 2).requires_grad_(), torch.randint(7, (64,))
    loss = LOSSES[name](logits, soft_labels(labels, 7))
    expected = expected_loss(LOSSES[name], logits, labels)
    found, wanted = (torch.autograd.grad(one, logits)[0] for one in (loss, expected))
    reference = "formula of Lin et al. 2017" if LOSSES[name].gamma else "torch cross_entropy"
    # Measured: 8.0e-8, 3.2e-7.
    deviations = {"loss": (relative(loss, expected), 1e-6), "gradient": (relative(found, wanted), 3e-6)}
    agrees(f"classification loss, {name}", reference, **deviations)
