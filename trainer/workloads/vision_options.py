"""Options of the classification of images, which its commands and its training share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer.errors import OptionError
from trainer.options import option, out_of_range

ROOM = 1.15
"""Ratio of the stored side of a picture to the crop's, unless the picture is smaller."""


def _operations(text: str) -> tuple[int, float] | str:
    if text == "off":
        return text
    operations, magnitude = text.split(",")
    return int(operations), float(magnitude)


_operations.__name__ = "N,M"  # argparse names the type in its message


@dataclass(frozen=True, kw_only=True)
class VisionOptions:
    """Options of this workload. Each preset is one of these."""

    model: str = option(
        "resnet-small", "resnet-small, resnet18 … vit-base, or timm:NAME (default: the preset's)", section="model",
        metavar="NAME",
    )  # fmt: skip
    pretrained: bool = option(False, "start from timm's weights")
    channels_last: bool = option(True, "keep the channels of a pixel together in memory")
    gradient_checkpointing: int | Literal["selective"] = option(
        0, "compute blocks again in the backward pass, all or every N-th (less memory, up to a third more work), or"
        " in each all but its large products", metavar="N|selective", without_value=1, at_least=0,
        aliases=("--use-gradient-checkpointing",),
        constants={"--no-gradient-checkpointing": 0, "--no-use-gradient-checkpointing": 0},
    )  # fmt: skip

    images: Path | None = option(
        None, "train from this folder instead of prepared data", section="images", metavar="FOLDER"
    )
    image_size: int = option(224, "side of a crop in pixels (default: the preset's)", at_least=8)
    grey: bool = option(False, "with --images: one channel (grayscale) instead of three")
    cache_mib: int | None = option(
        None, "with --images: memory for decoded images (default: ¼ of the free memory)", at_least=0,
        constants={"--no-cache": 0},
    )  # fmt: skip
    flip: bool = option(True, "mirror half of the images")
    crop_scale: float = option(
        1.0, "smallest share of a stored image's area in a random crop, which is then scaled; 1: crops of one size, not"
        " scaled (default: the preset's)", metavar="SHARE", above=0, at_most=1,
    )  # fmt: skip
    crop_padding: int | None = option(
        None, "black pixels around an image that a crop may include (default: an eighth of the crop if images are no"
        " larger, otherwise 0)", at_least=0,
    )  # fmt: skip
    randaugment: tuple[int, float] | None = option(
        None, "N operations of magnitude M (of 30) on each image; 2,9 without a value; off: none (default: the"
        " preset's)", metavar="N,M", read=_operations, without_value=(2, 9.0),
    )  # fmt: skip
    mixup: float = option(
        0.0, "mix pairs by Beta(ALPHA, ALPHA), 0 disables it (default: the preset's)", metavar="ALPHA", at_least=0
    )
    erase: float = option(
        0.0, "share of images of which a part is erased (default: the preset's)", metavar="P", at_least=0, at_most=1
    )

    focal_loss: float = option(
        0.0, "focal loss: exponent of the weight of hard samples, 2 without a value", section="loss", metavar="GAMMA",
        without_value=2.0, at_least=0,
    )  # fmt: skip
    label_smoothing: float = option(
        0.0, "share of a label spread over all classes (default: the preset's)", metavar="E", at_least=0, at_most=1
    )
    class_weights: str = option("none", "balanced: equal total weight of all classes", choices=("none", "balanced"))

    def __post_init__(self) -> None:
        wrong = out_of_range(self)
        operations, magnitude = self.randaugment or (1, 0.0)
        if operations < 1 or not 0 <= magnitude <= 30:
            wrong.append(f"--randaugment {operations},{magnitude:g}: expected 1 operation or more, magnitude 0 to 30")
        if wrong:
            raise OptionError("\n".join(wrong))
