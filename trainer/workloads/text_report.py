"""Quality of the heads: F1 and accuracy, a table per class, confusion matrices, and F1 over the evaluations."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional import classification

from trainer.data.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Classes = Mapping[str, Sequence[str]]
History = Mapping[int, Mapping[str, float]]
"""F1 of each head by step."""
LEGIBLE = 24
"""Maximum number of classes with names in the plot of the confusion matrix."""


def metrics(classes: Classes, found: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """F1 (every class counts the same, however rare) and accuracy of each head."""
    figures = {}
    for at, (head, names) in enumerate(classes.items()):
        predicted, true = _column(found, at), _column(labels, at)
        f1 = classification.multiclass_f1_score(predicted, true, len(names), average="macro")
        figures[f"{head}_f1"] = float(f1)
        figures[f"{head}_accuracy"] = float((predicted == true).float().mean())
    return figures


def per_class(classes: Classes, found: NDArray[np.float64], labels: NDArray[np.int64]) -> list[dict[str, Any]]:
    """A row for each class of each head, as one sorts them in a spreadsheet."""
    rows: list[dict[str, Any]] = []
    for at, (head, names) in enumerate(classes.items()):
        pair, count = (_column(found, at), _column(labels, at)), len(names)
        precision = classification.multiclass_precision(*pair, count, average="none").tolist()
        recall = classification.multiclass_recall(*pair, count, average="none").tolist()
        f1 = classification.multiclass_f1_score(*pair, count, average="none").tolist()
        texts = np.bincount(labels[:, at], minlength=count).tolist()
        for number, name in enumerate(names):
            measures = {"precision": precision[number], "recall": recall[number], "f1": f1[number]}
            rounded = {key: round(value, 4) for key, value in measures.items()}
            rows.append({"head": head, "class": name, "texts": texts[number], **rounded})
    return rows


def history(run_dir: Path, heads: Sequence[str]) -> dict[int, dict[str, float]]:
    """Read the run's own records, so that the history is whole after a resume too."""
    path = run_dir / "metrics.jsonl"
    found = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        entry = json.loads(line)
        if entry["kind"] == "validation" and all(f"{head}_f1" in entry for head in heads):
            found[int(entry["step"])] = {head: float(entry[f"{head}_f1"]) for head in heads}
    return dict(sorted(found.items()))


def save_report(
    classes: Classes, found: NDArray[np.float64], labels: NDArray[np.int64], known: History, folder: Path
) -> list[Path]:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    rows = per_class(classes, found, labels)
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files = {name: folder / name for name in ("classes.csv", "classes.json", "heads.png")}
    write_atomic(files["classes.csv"], table.getvalue().encode())
    write_atomic(files["classes.json"], json.dumps(rows, indent=1, ensure_ascii=False).encode())

    figure = Figure(figsize=(5.5 * (len(classes) + 1), 5.5), layout="constrained")
    first, *others = figure.subplots(1, len(classes) + 1)
    _draw_history(first, list(classes), known)
    for at, (axes, (head, names)) in enumerate(zip(others, classes.items(), strict=True)):
        counts = classification.multiclass_confusion_matrix(_column(found, at), _column(labels, at), len(names))
        _draw_confusion(axes, head, names, counts.numpy())
    figure.savefig(files["heads.png"], dpi=90)
    return list(files.values())


def _draw_history(axes: Axes, heads: Sequence[str], known: History) -> None:
    for head in heads:
        axes.plot(list(known), [figures[head] for figures in known.values()], marker="o", label=head)
    axes.set(title="F1 (macro) of each head", xlabel="step", ylim=(0, 1))
    axes.legend()


def _draw_confusion(axes: Axes, head: str, names: Sequence[str], counts: NDArray[np.int64]) -> None:
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set(title=head, xlabel="predicted", ylabel="true")
    if len(names) <= LEGIBLE:
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        for row, column in np.argwhere(counts > 0).tolist():
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=7, color=colour)


def _column(values: NDArray[Any], at: int) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values[:, at]).astype(np.int64))
