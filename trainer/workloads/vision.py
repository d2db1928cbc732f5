"""Pictures to classes: the command line, presets and defaults. What needs torch stands in vision_training.py."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config import Place, TrainOptions
from trainer.data.prepared_folder import IMAGES, read_manifest
from trainer.errors import UsageError
from trainer.options import add_train_options, train_options
from trainer.workloads import Actions

FASHION = "fashion-mnist"
ROOM = 1.15
"""How much larger than a crop pictures are kept, unless they are that small already."""
SEED_DEFAULTS: dict[str, Any] = {
    "schedule": "onecycle", "betas": (0.9, 0.999), "weight_decay": 1e-4, "clip": 1.0,
    "eval_every": "epoch", "checkpoint_every": "epoch", "best": "accuracy",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What this workload is told beside the engine's own options. A preset is one of these."""

    model: str
    image_size: int = 224
    mixup: float = 0.0
    randaugment: tuple[int, float] | None = None
    """Operations of each picture, and their magnitude of 30."""
    erase: float = 0.0
    flip: bool = True
    crop_padding: int | None = None
    """None: an eighth of the crop where pictures are no larger than that, else 0."""
    focal_loss: float = 0.0
    label_smoothing: float = 0.0
    class_weights: str = "none"
    channels_last: bool = True
    gradient_checkpointing: bool = False
    pretrained: bool = False
    images: Path | None = None
    """Train straight from this folder rather than from prepared data."""
    cache_mib: int | None = None
    grey: bool = False

    def __post_init__(self) -> None:
        shares = {"label_smoothing": self.label_smoothing, "erase": self.erase}
        wrong = [f"--{n.replace('_', '-')} {v:g}: expected 0 to 1" for n, v in shares.items() if not 0 <= v <= 1]
        least = {"mixup": self.mixup, "focal-loss": self.focal_loss, "cache-mib": self.cache_mib or 0}
        least["crop-padding"] = self.crop_padding or 0
        wrong += [f"--{name} {value:g}: expected 0 or more" for name, value in least.items() if not value >= 0]
        if self.image_size < 8:
            wrong.append(f"--image-size {self.image_size}: expected 8 or more")
        operations, magnitude = self.randaugment or (1, 0.0)
        if operations < 1 or not 0 <= magnitude <= 30:
            wrong.append(f"--randaugment {operations},{magnitude:g}: expected 1 operation or more, magnitude 0 to 30")
        if wrong:
            raise UsageError("\n".join(wrong))


@dataclass(frozen=True, kw_only=True)
class Preset:
    choices: Choices
    epochs: int
    batch_size: int
    lr: float


_AUGMENTED: dict[str, Any] = {"randaugment": (2, 9.0), "mixup": 0.2, "label_smoothing": 0.1}
PRESETS = {
    "tiny": Preset(choices=Choices(model="resnet-small", image_size=28), epochs=1, batch_size=32, lr=2e-3),
    "fashion": Preset(choices=Choices(model="resnet-small", image_size=28), epochs=5, batch_size=128, lr=5e-3),
    "small": Preset(choices=Choices(model="resnet18", **_AUGMENTED), epochs=30, batch_size=16, lr=1e-3),
    "base": Preset(choices=Choices(model="resnet50", **_AUGMENTED), epochs=90, batch_size=64, lr=2e-3),
    "vit": Preset(choices=Choices(model="vit-small", erase=0.25, **_AUGMENTED), epochs=90, batch_size=64, lr=5e-4),
}


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    _model_options(train.add_argument_group("model"))
    _data_options(train.add_argument_group("pictures"))
    _loss_options(train.add_argument_group("loss"))
    train.set_defaults(run=_train, check=_check)

    prepare = actions.add_parser("prepare", help="images to memory-mapped pixels", allow_abbrev=False)
    prepare.add_argument(
        "--images", required=True, metavar=f"FOLDER|{FASHION}",
        help=f"FOLDER/CLASS/… or FOLDER/train/CLASS/… and FOLDER/val/CLASS/…; or {FASHION}, from Debian's package",
    )  # fmt: skip
    prepare.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    prepare.add_argument("--image-size", type=int, metavar="N", help=f"of a crop (default 224; 28 for {FASHION})")
    prepare.add_argument(
        "--stored-size", type=int, metavar="N", help=f"side that is kept (default {ROOM:g} times --image-size)"
    )
    prepare.add_argument("--grey", action="store_true", help="one channel instead of three")
    prepare.add_argument(
        "--validation-share", type=float, default=0.1, metavar="SHARE", help="of a FOLDER without val/ (default 0.1)"
    )
    prepare.set_defaults(run=_prepare)

    evaluate = actions.add_parser("evaluate", help="a checkpoint, class by class", allow_abbrev=False)
    evaluate.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR", help="its validation split")
    evaluate.add_argument("--out", type=Path, metavar="DIR", help="per_class.json, per_class.csv, confusion.png")
    predict = actions.add_parser("predict", help="name what pictures show", allow_abbrev=False)
    predict.add_argument("--images", type=Path, required=True, action="append", metavar="PATH", help="file or folder")
    predict.add_argument("--top", type=int, default=3, metavar="K", help="likeliest classes to name (default 3)")
    predict.add_argument("--json", action="store_true", help="one JSON object a line")
    for action, run in ((evaluate, _evaluate), (predict, _predict)):
        action.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
        action.add_argument("--batch-size", type=int, default=64, metavar="N")
        action.set_defaults(run=run)


def _model_options(group: Any) -> None:
    group.add_argument("--preset", choices=PRESETS, help="default fashion, for small grey pictures on a CPU")
    group.add_argument("--model", metavar="NAME", help="resnet-small, resnet18 … vit-base, or timm:NAME")
    group.add_argument("--pretrained", action="store_const", const=True, help="start from timm's weights")
    group.add_argument(
        "--channels-last", action=argparse.BooleanOptionalAction, help="pixels before channels in memory (default on)"
    )
    group.add_argument(
        "--gradient-checkpointing", "--use-gradient-checkpointing", action=argparse.BooleanOptionalAction,
        help="keep each block's input alone and compute the rest again: less memory, a fourth to a third slower",
    )  # fmt: skip


def _data_options(group: Any) -> None:
    group.add_argument("--images", type=Path, metavar="FOLDER", help="train straight from it, not from --data-dir")
    group.add_argument("--image-size", type=int, metavar="N", help="of a crop")
    group.add_argument("--grey", action="store_const", const=True, help="with --images: one channel instead of three")
    group.add_argument(
        "--cache-mib", type=int, metavar="N", help="with --images: memory for decoded pictures (default: ¼ of the free)"
    )
    group.add_argument("--no-cache", dest="cache_mib", action="store_const", const=0, help="decode in every epoch")
    group.add_argument("--flip", action=argparse.BooleanOptionalAction, help="mirror half of the pictures (default on)")
    group.add_argument("--crop-padding", type=int, metavar="N", help="black pixels around, which a crop may reach into")
    group.add_argument(
        "--randaugment", type=_operations, nargs="?", const=(2, 9.0), metavar="N,M",
        help="N operations of magnitude M (of 30) for each picture; 2,9 if you name none; off for none",
    )  # fmt: skip
    group.add_argument("--mixup", type=float, metavar="ALPHA", help="mix pairs by Beta(ALPHA, ALPHA); 0 for not to")
    group.add_argument("--erase", type=float, metavar="P", help="share of pictures of which a part is erased")


def _loss_options(group: Any) -> None:
    group.add_argument(
        "--focal-loss", type=float, nargs="?", const=2.0, metavar="GAMMA", help="count what is hard more (default 2)"
    )
    group.add_argument("--label-smoothing", type=float, metavar="E", help="share of a label spread over all classes")
    group.add_argument("--class-weights", choices=("none", "balanced"), help="rare classes count as much in sum")


def _operations(text: str) -> tuple[int, float] | str:
    if text == "off":
        return text
    operations, magnitude = text.split(",")
    return int(operations), float(magnitude)


_operations.__name__ = "N,M"  # argparse names the type in its sentence


def choices(given: argparse.Namespace) -> Choices:
    """What the user gave, else what the preset says."""
    preset = PRESETS[given.preset or "fashion"].choices
    said = {name: value for name in vars(preset) if (value := getattr(given, name, None)) is not None}
    if said.get("randaugment") == "off":
        said["randaugment"] = None
    return replace(preset, **said)


def _check(given: argparse.Namespace, place: Place, data: Path | None) -> None:
    _, chosen = _asked(given, place)
    if data and not chosen.images:
        read_manifest(data, IMAGES)


def _train(given: argparse.Namespace, place: Place) -> int:
    options, chosen = _asked(given, place)
    # A size that only the preset names gives way to that of prepared data.
    size = chosen.image_size if given.image_size or chosen.images else None

    from trainer.engine import loop
    from trainer.workloads.vision_training import Vision, open_pictures

    def build() -> Vision:
        return Vision(options, chosen, open_pictures(options, chosen, size, place), place)

    return loop.train(build, options, place)


def _asked(given: argparse.Namespace, place: Place) -> tuple[TrainOptions, Choices]:
    """The options of the engine and of this workload. UsageError where they cannot be."""
    preset = PRESETS[given.preset or "fashion"]
    own = {**SEED_DEFAULTS, "batch_size": preset.batch_size, "lr": preset.lr}
    if given.epochs is None and given.max_steps is None:
        own["epochs"] = preset.epochs
    return train_options(given, own, place), choices(given)


def _prepare(given: argparse.Namespace, _place: Place) -> int:
    from trainer.data import image_store, images

    fashion = given.images == FASHION
    crop = given.image_size or (28 if fashion else 224)
    # Fashion-MNIST's pictures are as small as a crop: scaling them up would only blur them.
    stored = given.stored_size or (crop if fashion else round(ROOM * crop))
    if crop < 8 or stored < crop:
        raise UsageError(f"--image-size {crop}, --stored-size {stored}: expected 8 or more, and to store no less")
    if not 0 <= given.validation_share < 1:
        raise UsageError(f"--validation-share {given.validation_share:g}: expected 0 or more and less than 1")
    gallery = images.fashion_mnist(print) if fashion else images.from_folder(Path(given.images), given.validation_share)
    frame = images.Frame(stored=stored, crop=crop, channels=1 if given.grey or fashion else 3)
    data, new = image_store.prepare(gallery, given.data_dir, frame)
    counts = {name: split["images"] for name, split in data.manifest["splits"].items()}
    print(
        f"{given.data_dir}: {'prepared' if new else 'already there, kept as it is'}: {counts['train']} images to train,"
        f" {counts['validation']} to validate, {len(data.classes)} classes, {stored} × {stored} × {frame.channels}"
    )
    return 0


def _evaluate(given: argparse.Namespace, place: Place) -> int:
    from trainer.workloads import vision_prediction

    return vision_prediction.evaluate(given, place)


def _predict(given: argparse.Namespace, place: Place) -> int:
    from trainer.workloads import vision_prediction

    return vision_prediction.predict(given, place)
