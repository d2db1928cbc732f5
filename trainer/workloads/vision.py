"""Classification of images: presets and commands. Modules that need torch are imported where they are used."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from trainer.config import RankInfo, TrainOptions
from trainer.data.prepared_folder import IMAGES, read_manifest
from trainer.errors import OptionError
from trainer.option_layers import add_train_options, train_options
from trainer.options import add_options, values_given
from trainer.workloads import Actions
from trainer.workloads.vision_options import ROOM, VisionOptions

FASHION = "fashion-mnist"
SEED_DEFAULTS: dict[str, Any] = {
    "schedule": "onecycle", "betas": (0.9, 0.999), "weight_decay": 1e-4, "clip": 1.0,
    "eval_every": "epoch", "checkpoint_every": "epoch", "best": "accuracy",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VisionPreset:
    options: VisionOptions
    epochs: int
    batch_size: int
    lr: float


_AUGMENTED: dict[str, Any] = {"randaugment": (2, 9.0), "mixup": 0.2, "label_smoothing": 0.1}
_SCALED: dict[str, Any] = {**_AUGMENTED, "crop_scale": 0.08}
_SMALL = VisionOptions(model="resnet-small", image_size=28)
PRESETS = {
    "tiny": VisionPreset(options=_SMALL, epochs=1, batch_size=32, lr=2e-3),
    "fashion": VisionPreset(options=_SMALL, epochs=5, batch_size=128, lr=5e-3),
    "small": VisionPreset(options=VisionOptions(model="resnet18", **_AUGMENTED), epochs=30, batch_size=16, lr=1e-3),
    "base": VisionPreset(options=VisionOptions(model="resnet50", **_SCALED), epochs=90, batch_size=64, lr=2e-3),
    "vit": VisionPreset(
        options=VisionOptions(model="vit-small", erase=0.25, **_SCALED), epochs=90, batch_size=64, lr=5e-4
    ),
}


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    train.add_argument("--preset", choices=PRESETS, help="default: fashion, for small grayscale images on a CPU")
    add_options(train, VisionOptions)
    train.set_defaults(run=_train, check=_check)

    prepare = actions.add_parser("prepare", help="convert images to memory-mapped pixels", allow_abbrev=False)
    prepare.add_argument(
        "--images", required=True, metavar=f"FOLDER|{FASHION}",
        help=f"FOLDER/CLASS/… or FOLDER/train/CLASS/… and FOLDER/val/CLASS/…; or {FASHION}, from Debian's package",
    )  # fmt: skip
    prepare.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    prepare.add_argument(
        "--image-size", type=int, metavar="N", help=f"side of a crop in pixels (default 224; 28 for {FASHION})"
    )
    prepare.add_argument(
        "--stored-size",
        type=int,
        metavar="N",
        help=f"side of a stored image in pixels (default {ROOM:g} times --image-size)",
    )
    prepare.add_argument("--grey", action="store_true", help="one channel (grayscale) instead of three")
    prepare.add_argument(
        "--validation-share",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of a FOLDER without val/ for validation (default 0.1)",
    )
    prepare.set_defaults(run=_prepare)

    evaluate = actions.add_parser("evaluate", help="evaluate a checkpoint, class by class", allow_abbrev=False)
    evaluate.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR", help="its validation split")
    evaluate.add_argument("--out", type=Path, metavar="DIR", help="per_class.json, per_class.csv, confusion.png")
    predict = actions.add_parser("predict", help="name what images show", allow_abbrev=False)
    predict.add_argument("--images", type=Path, required=True, action="append", metavar="PATH", help="file or folder")
    predict.add_argument("--top", type=int, default=3, metavar="K", help="likeliest classes to name (default 3)")
    form = predict.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a line")
    form.add_argument("--out", type=Path, metavar="FILE", help="CSV file, a row for each class that is named")
    evaluate.set_defaults(run=lambda *given: import_module("trainer.workloads.vision_prediction").evaluate(*given))
    predict.set_defaults(run=lambda *given: import_module("trainer.workloads.vision_prediction").predict(*given))
    for action in (evaluate, predict):
        action.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
        action.add_argument("--batch-size", type=int, default=64, metavar="N")


def _check(given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
    _, chosen = _asked(given, place)
    if data and not chosen.images:
        read_manifest(data, IMAGES)


def _train(given: argparse.Namespace, place: RankInfo) -> int:
    options, chosen = _asked(given, place)
    # A size that only the preset names gives way to that of prepared data.
    size = chosen.image_size if given.image_size or chosen.images else None

    from trainer.engine import loop
    from trainer.workloads.vision_training import Vision, open_pictures

    def build() -> Vision:
        return Vision(options, chosen, open_pictures(options, chosen, size, place), place)

    return loop.train(build, options, place)


def _asked(given: argparse.Namespace, place: RankInfo) -> tuple[TrainOptions, VisionOptions]:
    """Build the options of the engine and of the workload. OptionError: they are invalid."""
    preset = PRESETS[given.preset or "fashion"]
    own = {**SEED_DEFAULTS, "batch_size": preset.batch_size, "lr": preset.lr}
    if given.epochs is None and given.max_steps is None:
        own["epochs"] = preset.epochs
    return train_options(given, own, place), choices(given)


def choices(given: argparse.Namespace) -> VisionOptions:
    """Build the options from the given values and the preset."""
    chosen = values_given(given, VisionOptions)
    if chosen.get("randaugment") == "off":
        chosen["randaugment"] = None
    return replace(PRESETS[given.preset or "fashion"].options, **chosen)


def _prepare(given: argparse.Namespace, _place: RankInfo) -> int:
    from trainer.data import image_store, images

    fashion = given.images == FASHION
    crop = given.image_size or (28 if fashion else 224)
    # Fashion-MNIST's pictures are as small as a crop: scaling them up would only blur them.
    stored = given.stored_size or (crop if fashion else round(ROOM * crop))
    if crop < 8 or stored < crop:
        raise OptionError(f"--image-size {crop}, --stored-size {stored}: expected 8 or more, and to store no less")
    if not 0 <= given.validation_share < 1:
        raise OptionError(f"--validation-share {given.validation_share:g}: expected 0 or more and less than 1")
    gallery = images.fashion_mnist(print) if fashion else images.from_folder(Path(given.images), given.validation_share)
    frame = images.Frame(stored=stored, crop=crop, channels=1 if given.grey or fashion else 3)
    data, new = image_store.prepare(gallery, given.data_dir, frame)
    counts = {name: split["images"] for name, split in data.manifest["splits"].items()}
    print(
        f"{given.data_dir}: {'prepared' if new else 'already there, kept as it is'}: {counts['train']} images to train,"
        f" {counts['validation']} to validate, {len(data.classes)} classes, {stored} × {stored} × {frame.channels}"
    )
    return 0
