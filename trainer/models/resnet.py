"""Residual networks (He, Zhang, Ren, Sun 2015) for images of any size, and a small one for 28 to 32 pixels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from trainer.models.layers import Recompute, RecomputedBlock, recompute


@dataclass(frozen=True, kw_only=True)
class ResNetShape:
    blocks: tuple[int, ...]
    """Blocks of each stage; every stage but the first halves the image."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    expansion: int = 1
    """Factor; above 1: blocks of 1×1, 3×3, 1×1 convolutions whose output is this much wider."""
    small_images: bool = False
    """Start with a 3×3 convolution at full size instead of 7×7 and pooling, which leave a quarter of the side."""


SHAPES = {
    "resnet-small": ResNetShape(blocks=(1, 1, 1), widths=(32, 64, 128), small_images=True),
    "resnet18": ResNetShape(blocks=(2, 2, 2, 2)),
    "resnet34": ResNetShape(blocks=(3, 4, 6, 3)),
    "resnet50": ResNetShape(blocks=(3, 4, 6, 3), expansion=4),
}


class ResNet(nn.Module):
    def __init__(self, shape: ResNetShape, channels: int, classes: int, checkpointing: Recompute = 0) -> None:
        super().__init__()
        first = shape.widths[0]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1, bias=False)
            if shape.small_images
            else nn.Conv2d(channels, first, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(inplace=True),
            nn.Identity() if shape.small_images else nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.blocks = nn.ModuleList()
        inputs = first
        for stage, (count, width) in enumerate(zip(shape.blocks, shape.widths, strict=True)):
            for number in range(count):
                stride = 2 if stage and not number else 1
                self.blocks.append(ResidualBlock(inputs, width, stride, shape.expansion))
                inputs = width * shape.expansion
        self.head = nn.Linear(inputs, classes)
        recompute(self.blocks, checkpointing)
        self._initialize()

    def _initialize(self) -> None:
        """Initialize as torchvision and timm do: convolutions that keep the variance of gradients (He et al. 2015),
        and blocks that begin as their shortcut (Goyal et al. 2017, arXiv:1706.02677, 5.1)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, ResidualBlock) and isinstance(last := module.layers[-1], nn.BatchNorm2d):
                nn.init.zeros_(last.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class ResidualBlock(RecomputedBlock):
    draws = False

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        if expansion == 1:
            layers = [*_conv(inputs, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, outputs, 3, 1)]
        else:
            layers = [
                *_conv(inputs, width, 1, 1),
                nn.ReLU(inplace=True),
                *_conv(width, width, 3, stride),
                nn.ReLU(inplace=True),
                *_conv(width, outputs, 1, 1),
            ]
        self.layers = nn.Sequential(*layers)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*_conv(inputs, outputs, 1, stride)) if changes else nn.Identity()
        # In place where the input is not read again: a normalization keeps its own input, and a sum keeps nothing.
        self.activation = nn.ReLU(inplace=True)

    def compute(self, x: Tensor) -> Tensor:
        identity = self.shortcut(x)
        activated: Tensor = self.activation(self.layers(x) + identity)
        return activated


def _conv(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """A convolution without bias and its normalization, which has one."""
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)
