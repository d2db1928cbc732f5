"""Predictions of a checkpoint for a prepared validation split, or for other picture files."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer import checkpoint_folder
from trainer.config import RankInfo, TrainOptions
from trainer.data import image_store
from trainer.data.augment import middle
from trainer.data.images import Frame, open_image, pixels
from trainer.engine.checkpoints.state_file import must_fit_in, read_state
from trainer.engine.hardware.device import Hardware, prepare_hardware
from trainer.errors import ConfigurationError, OptionError
from trainer.models.classifier import Classifier, ClassifierShape, build
from trainer.workloads import vision_metrics
from trainer.workloads.vision_training import in_memory, planes


@dataclass(frozen=True, kw_only=True)
class Trained:
    model: Classifier
    classes: tuple[str, ...]
    frame: Frame
    hardware: Hardware

    @torch.no_grad()
    def logits(self, views: Tensor) -> Tensor:
        """Compute logits for (n, height, width, channels) of bytes, on the CPU."""
        pictures = planes(views.to(self.hardware.device)).contiguous(memory_format=torch.channels_last)
        with self.hardware.autocast():
            scores: Tensor = self.model(pictures)
        return scores.float().cpu()


def load(path: Path, place: RankInfo) -> Trained:
    found = checkpoint_folder.locate(path, print)
    identity = found.manifest.identity
    if identity["workload"] != "vision":
        raise ConfigurationError(f"{found.path}: a checkpoint of {identity['workload']}, not of vision")
    about: dict[str, Any] = json.loads((found.path / "classes.json").read_text("utf-8"))
    shape = ClassifierShape(**{name: identity[name] for name in ("model", "image_size", "channels", "classes")})
    model = Classifier(build(shape), about["mean"], about["std"])
    state = read_state(found.state_file)
    with must_fit_in(found.state_file):
        model.load_state_dict(state["model"])
    hardware = prepare_hardware(place, TrainOptions())
    in_memory(model.to(hardware.device), torch.channels_last).eval()
    return Trained(
        model=model, classes=tuple(about["classes"]), frame=Frame(**about["frame"]), hardware=hardware
    )  # fmt: skip


def evaluate(given: argparse.Namespace, place: RankInfo) -> int:
    trained, data = load(given.checkpoint, place), image_store.PreparedImages.open(given.data_dir)
    if data.classes != trained.classes:
        raise ConfigurationError(
            f"{given.data_dir} has the classes {', '.join(data.classes)};"
            f" the model of {given.checkpoint} knows {', '.join(trained.classes)}"
        )
    images = image_store.StoredImages(data, "validation")
    judged = []
    for at in range(0, len(images), given.batch_size):
        indices = np.arange(at, min(at + given.batch_size, len(images)))
        logits = trained.logits(torch.from_numpy(middle(images, indices, trained.frame.crop)))
        judged.append(vision_metrics.outputs_of(logits, torch.from_numpy(images.labels[indices])))
    if not judged:
        raise ConfigurationError(f"{given.data_dir}: no images to validate with")
    outputs = torch.cat(judged).numpy()
    print(vision_metrics.table(vision_metrics.per_class(outputs, trained.classes)))
    found = vision_metrics.figures(outputs, len(trained.classes))
    print("  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.items()))
    if given.out:
        for path in vision_metrics.write(outputs, trained.classes, given.out):
            print(path)
    return 0


def predict(given: argparse.Namespace, place: RankInfo) -> int:
    if given.top < 1 or given.batch_size < 1:
        raise OptionError(f"--top {given.top}, --batch-size {given.batch_size}: expected 1 or more")
    files = [file for path in given.images for file in _files(path)]
    trained = load(given.checkpoint, place)
    bad: list[str] = []
    rows: list[tuple[Path, dict[str, float]]] = []
    for at in range(0, len(files), given.batch_size):
        for file, found in _named(files[at : at + given.batch_size], trained, given.top, bad):
            if given.out:
                rows.append((file, found))
            elif given.json:
                print(json.dumps({"image": str(file), "classes": found}, ensure_ascii=False))
            else:
                print(f"{file}: " + ", ".join(f"{name} {share:.1%}" for name, share in found.items()))
    if given.out:
        _write_table(given.out, rows)
        print(f"{given.out}: {len(rows)} images")
    if bad:
        raise ConfigurationError("\n".join([*bad, "these files are no images; all others are named above"]))
    return 0


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder")
    return [path]


def _write_table(path: Path, rows: list[tuple[Path, dict[str, float]]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("image", "class", "probability"))
        writer.writerows((image.name, name, f"{share:.4f}") for image, found in rows for name, share in found.items())


def _named(files: list[Path], trained: Trained, top: int, bad: list[str]) -> Iterator[tuple[Path, dict[str, float]]]:
    seen, views = [], []
    for file in files:
        try:
            views.append(pixels(open_image(file), trained.frame))
            seen.append(file)
        except OSError as error:
            bad.append(f"{file}: {error}")
    if not seen:
        return
    corner = (trained.frame.stored - trained.frame.crop) // 2
    inside = slice(corner, corner + trained.frame.crop)
    likely = trained.logits(torch.from_numpy(np.stack(views)[:, inside, inside])).softmax(1)
    values, numbers = likely.topk(min(top, len(trained.classes)), 1)
    for file, shares, names in zip(seen, values.tolist(), numbers.tolist(), strict=True):
        yield file, {trained.classes[number]: share for number, share in zip(names, shares, strict=True)}
