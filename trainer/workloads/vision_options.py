"""The options of the `vision` workload: presets, declarations, and their values."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.errors import OptionError
from trainer.option_layers import add_train_options

ROOM = 1.15
"""How much larger than a crop pictures are kept, unless they are that small already."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions:
    """Options of this workload beside the engine's. Each preset is one of these."""

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
            raise OptionError("\n".join(wrong))


@dataclass(frozen=True, kw_only=True)
class VisionPreset:
    options: VisionOptions
    epochs: int
    batch_size: int
    lr: float


_AUGMENTED: dict[str, Any] = {"randaugment": (2, 9.0), "mixup": 0.2, "label_smoothing": 0.1}
PRESETS = {
    "tiny": VisionPreset(options=VisionOptions(model="resnet-small", image_size=28), epochs=1, batch_size=32, lr=2e-3),
    "fashion": VisionPreset(
        options=VisionOptions(model="resnet-small", image_size=28), epochs=5, batch_size=128, lr=5e-3
    ),
    "small": VisionPreset(options=VisionOptions(model="resnet18", **_AUGMENTED), epochs=30, batch_size=16, lr=1e-3),
    "base": VisionPreset(options=VisionOptions(model="resnet50", **_AUGMENTED), epochs=90, batch_size=64, lr=2e-3),
    "vit": VisionPreset(
        options=VisionOptions(model="vit-small", erase=0.25, **_AUGMENTED), epochs=90, batch_size=64, lr=5e-4
    ),
}


def add_training(parser: argparse.ArgumentParser) -> None:
    add_train_options(parser)
    _model_options(parser.add_argument_group("model"))
    _data_options(parser.add_argument_group("pictures"))
    _loss_options(parser.add_argument_group("loss"))


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


def choices(given: argparse.Namespace) -> VisionOptions:
    """What the user gave, else what the preset says."""
    preset = PRESETS[given.preset or "fashion"].options
    said = {name: value for name in vars(preset) if (value := getattr(given, name, None)) is not None}
    if said.get("randaugment") == "off":
        said["randaugment"] = None
    return replace(preset, **said)
