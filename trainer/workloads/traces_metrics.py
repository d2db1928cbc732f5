"""Metrics and plots of anomaly detection. Outputs are (traces, 2): score and label."""

from __future__ import annotations

from pathlib import Path

import torch
from torchmetrics.functional import classification as measure

from trainer.engine.workload import Outputs

THRESHOLD = 0.5


def measures(outputs: Outputs) -> dict[str, float]:
    scores, labels = torch.from_numpy(outputs[:, 0]), torch.from_numpy(outputs[:, 1]).long()
    found = {
        "f1": measure.binary_f1_score(scores, labels, THRESHOLD),
        "precision": measure.binary_precision(scores, labels, THRESHOLD),
        "recall": measure.binary_recall(scores, labels, THRESHOLD),
        "accuracy": measure.binary_accuracy(scores, labels, THRESHOLD),
    }
    if 0 < labels.sum() < len(labels):  # with one class alone there is nothing to rank
        found |= {
            "auroc": measure.binary_auroc(scores, labels),
            "average_precision": measure.binary_average_precision(scores, labels),
        }
    return {name: float(value) for name, value in found.items()}


def draw(outputs: Outputs, folder: Path) -> list[Path]:
    """roc.png and confusion.png."""
    from matplotlib.figure import Figure

    scores, labels = torch.from_numpy(outputs[:, 0]), torch.from_numpy(outputs[:, 1]).long()
    figures = measures(outputs)
    false_positives, true_positives, _ = measure.binary_roc(scores, labels)
    roc = Figure(figsize=(5, 5), layout="constrained")
    axes = roc.subplots()
    axes.plot(false_positives.numpy(), true_positives.numpy())
    axes.plot([0, 1], [0, 1], linestyle=":", color="grey")
    axes.set(xlabel="false alarms", ylabel="anomalies found", title=f"AUROC {figures.get('auroc', float('nan')):.3f}")

    counts = measure.binary_confusion_matrix(scores, labels, THRESHOLD)
    confusion = Figure(figsize=(4, 4), layout="constrained")
    axes = confusion.subplots()
    axes.imshow((counts / counts.sum(1, keepdim=True).clamp_min(1)).numpy(), cmap="Blues", vmin=0, vmax=1)
    for row, of_row in enumerate(counts.tolist()):
        for column, count in enumerate(of_row):
            axes.text(column, row, f"{count}", ha="center", va="center")
    names = ("usual", "anomalous")
    axes.set_xticks((0, 1), names)
    axes.set_yticks((0, 1), names)
    axes.set(xlabel="said", ylabel="is", title=f"F1 {figures['f1']:.3f}")

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "roc.png", folder / "confusion.png"]
    for figure, path in zip((roc, confusion), paths, strict=True):
        figure.savefig(path)
    return paths
