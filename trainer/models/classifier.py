"""Image classifiers by name: our own, and timm's where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.errors import ConfigurationError, OptionError
from trainer.models import resnet, vit
from trainer.models.layers import Recompute

TIMM = "timm:"
NAMES = (*resnet.SHAPES, *vit.SHAPES)


@dataclass(frozen=True, kw_only=True)
class ClassifierShape:
    """Model, shape of the images and number of their classes."""

    model: str
    image_size: int
    channels: int
    classes: int


class Classifier(nn.Module):
    """A network with the normalization of its images: pixels to logits."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) from 0 to 255."""
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits


def build(shape: ClassifierShape, *, checkpointing: Recompute = 0, pretrained: bool = False) -> nn.Module:
    if shape.model.startswith(TIMM):
        return _of_timm(shape, checkpointing=checkpointing, pretrained=pretrained)
    if pretrained:
        raise OptionError(f"--pretrained: {shape.model} has no weights to start from; only {TIMM}NAME may have")
    if shape.model in resnet.SHAPES:
        return resnet.ResNet(resnet.SHAPES[shape.model], shape.channels, shape.classes, checkpointing)
    if shape.model in vit.SHAPES:
        return vit.ViT(vit.SHAPES[shape.model], shape.channels, shape.classes, shape.image_size, checkpointing)
    raise OptionError(f"--model {shape.model}: expected one of {', '.join(NAMES)}, or {TIMM}NAME")


def _of_timm(shape: ClassifierShape, *, checkpointing: Recompute, pretrained: bool) -> nn.Module:
    try:
        timm = importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--model {shape.model}: {error.name} is not installed here (pip install timm torchvision); our own models"
            f" need neither: {', '.join(NAMES)}"
        ) from None
    except Exception as error:  # the import of a torchvision built for another torch fails with various errors
        raise ConfigurationError(
            f"--model {shape.model}: timm cannot be imported: {error}\n"
            "install the torchvision that was built for this torch, or take one of " + ", ".join(NAMES)
        ) from error
    name = shape.model.removeprefix(TIMM)
    wanted = {"num_classes": shape.classes, "in_chans": shape.channels, "pretrained": pretrained}
    try:
        # Transformers are built for one image size; convolutions take any and have no such option.
        try:
            model: nn.Module = timm.create_model(name, img_size=shape.image_size, **wanted)
        except TypeError:
            model = timm.create_model(name, **wanted)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigurationError(f"--model {shape.model}: {error}") from error
    if checkpointing not in (0, 1):
        raise OptionError(f"--gradient-checkpointing {checkpointing}: timm's models know no other than all blocks")
    if checkpointing:
        model.set_grad_checkpointing()  # type: ignore[operator]  # a method of every model of timm
    return model
