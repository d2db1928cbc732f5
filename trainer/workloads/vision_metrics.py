"""Quality of a classifier: in a few figures, class by class, and as a picture of what it confuses with what."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional import classification

from trainer.data.files import write_atomic
from trainer.engine.workload import Outputs

LABEL, PREDICTED, RANK = range(3)
"""The columns of what is kept of each picture: its class, the likeliest one, and how many come before its own."""
MOST_NAMED = 40
"""Maximum number of classes with names in the plot of the confusion matrix."""


def outputs_of(logits: Tensor, labels: Tensor) -> Tensor:
    """(n, 3). Of equal scores the first class is taken, as argmax does."""
    own = logits.gather(1, labels[:, None])
    before = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    rank = ((logits > own) | ((logits == own) & before)).sum(1)
    return torch.stack([labels, logits.argmax(1), rank], 1).double()


def figures(outputs: Outputs, classes: int) -> dict[str, float]:
    if not len(outputs):
        return {}
    label, predicted = _columns(outputs)
    found = {
        "accuracy": float((label == predicted).double().mean()),
        "macro_f1": float(classification.multiclass_f1_score(predicted, label, classes, average="macro")),
    }
    if classes > 5:
        found["top5"] = float((outputs[:, RANK] < 5).mean())
    return found


def per_class(outputs: Outputs, classes: Sequence[str]) -> list[dict[str, str | float]]:
    label, predicted = _columns(outputs)
    precision, recall, f1 = (
        measure(predicted, label, len(classes), average="none").tolist()
        for measure in (
            classification.multiclass_precision,
            classification.multiclass_recall,
            classification.multiclass_f1_score,
        )
    )
    images = np.bincount(outputs[:, LABEL].astype(np.int64), minlength=len(classes)).tolist()
    return [
        {"class": name, "precision": precision[i], "recall": recall[i], "f1": f1[i], "images": images[i]}
        for i, name in enumerate(classes)
    ]


def table(rows: Sequence[dict[str, str | float]]) -> str:
    width = max(5, *(len(str(row["class"])) for row in rows))
    lines = [f"{'class':<{width}}  precision  recall     f1  images"]
    lines += [
        f"{row['class']:<{width}}  {row['precision']:9.3f}  {row['recall']:6.3f}  {row['f1']:5.3f}  {row['images']:6d}"
        for row in rows
    ]
    return "\n".join(lines)


def write(outputs: Outputs, classes: Sequence[str], folder: Path) -> list[Path]:
    """per_class.json, per_class.csv and confusion.png."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = per_class(outputs, classes)
    values = {**figures(outputs, len(classes)), "classes": rows}
    write_atomic(folder / "per_class.json", json.dumps(values, indent=2, ensure_ascii=False).encode())
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(folder / "per_class.csv", text.getvalue().encode())
    write_atomic(folder / "confusion.png", confusion_picture(outputs, classes))
    return [folder / name for name in ("per_class.json", "per_class.csv", "confusion.png")]


def confusion_picture(outputs: Outputs, classes: Sequence[str]) -> bytes:
    """Each row is one class and sums to 100 %: where its pictures went."""
    from matplotlib.figure import Figure

    label, predicted = _columns(outputs)
    counts = classification.multiclass_confusion_matrix(predicted, label, len(classes)).double()
    shares = (100 * counts / counts.sum(1, keepdim=True).clamp_min(1)).numpy()
    named = len(classes) <= MOST_NAMED
    side = min(16.0, 2.5 + 0.55 * len(classes)) if named else 9.0
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(picture, label="% of the class's images", shrink=0.8)
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    axes.set_title(f"accuracy {float((label == predicted).double().mean()):.1%}, {len(label)} images")
    if named:
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(classes)), classes)
        for (row, column), share in np.ndenumerate(shares):
            if share >= 1:
                colour = "white" if share > 50 else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def _columns(outputs: Outputs) -> tuple[Tensor, Tensor]:
    whole = torch.from_numpy(outputs[:, :RANK]).long()
    return whole[:, LABEL], whole[:, PREDICTED]
