"""Loss of a classifier, and the report of its quality. References/ has the loss by its formulas."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trainer.models.classification_loss import ClassificationLoss, balanced, soft_labels
from trainer.workloads import vision_metrics

torch.manual_seed(0)
LOGITS, LABELS = torch.randn(32, 5) * 2, torch.randint(0, 5, (32,))


def test_focal_loss_takes_weight_from_what_is_easy() -> None:
    easy, hard = torch.tensor([[4.0, 0, 0]]), torch.tensor([[-1.0, 0, 0]])
    target = soft_labels(torch.tensor([0]), 3)
    plain, focal = ClassificationLoss(), ClassificationLoss(gamma=2.0)
    assert focal(easy, target) / plain(easy, target) < 0.01 < 0.5 < focal(hard, target) / plain(hard, target)


def test_the_gradient_of_a_certain_answer_is_a_number() -> None:
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    ClassificationLoss(gamma=0.5, smoothing=0.1)(logits, soft_labels(torch.tensor([0]), 2)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_balanced_classes_count_alike_and_the_mean_weight_is_1() -> None:
    counts = [60, 30, 10, 0]
    weights = balanced(counts)
    assert [round(weight * count, 6) for weight, count in zip(weights, counts, strict=True)] == [33.333333] * 3 + [0]


def test_a_mixed_label_costs_as_both_of_its_parts() -> None:
    loss = ClassificationLoss(smoothing=0.1)
    first, second = soft_labels(LABELS, 5), soft_labels(LABELS.flip(0), 5)
    mixed = loss(LOGITS, torch.lerp(second, first, 0.3)).item()
    assert mixed == pytest.approx(0.3 * loss(LOGITS, first).item() + 0.7 * loss(LOGITS, second).item(), rel=1e-5)


def test_outputs_tell_the_rank_of_the_right_class() -> None:
    logits = torch.tensor([[3.0, 2, 1], [1, 2, 3], [0, 0, 0]])
    found = vision_metrics.outputs_of(logits, torch.tensor([0, 0, 1]))
    assert found.tolist() == [[0, 0, 0], [0, 2, 2], [1, 0, 1]]


# Classes 0 and 1 right twice and once of two and three; class 2 never seen, but guessed once.
OUTPUTS = np.array([[0, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 1], [1, 2, 2]], np.float64)


def test_figures_are_those_of_the_field() -> None:
    found = vision_metrics.figures(OUTPUTS, 3)
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["macro_f1"] == pytest.approx((0.8 + 0.5 + 0) / 3)
    assert "top5" not in found
    many = np.array([[5, 1, 4], [5, 1, 5]], np.float64)
    assert vision_metrics.figures(many, 7)["top5"] == pytest.approx(0.5)
    assert vision_metrics.figures(np.empty((0, 3)), 3) == {}


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    paths = vision_metrics.write(OUTPUTS, ("uno", "dos", "trés"), tmp_path / "out")
    data = json.loads(paths[0].read_text())
    assert data["accuracy"] == pytest.approx(0.6)
    first = data["classes"][0]
    assert first.pop("class") == "uno"
    assert first == pytest.approx({"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "images": 2}, rel=1e-6)
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert [(row["class"], row["images"]) for row in rows] == [("uno", "2"), ("dos", "3"), ("trés", "0")]
    with Image.open(paths[2]) as picture:
        assert min(picture.size) > 200
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20


def test_a_thousand_classes_still_make_a_picture() -> None:
    labels = np.arange(1000, dtype=np.float64)
    outputs = np.stack([labels, labels, np.zeros(1000)], 1)
    assert vision_metrics.confusion_picture(outputs, [str(n) for n in range(1000)]).startswith(b"\x89PNG")
