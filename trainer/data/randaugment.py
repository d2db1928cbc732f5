"""RandAugment (Cubuk, Zoph, Shlens, Le 2019) on whole batches, on any device, with each image's own operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.data.to_device import to_device

OPERATIONS = (
    "identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness", "contrast",
    "autocontrast", "posterize", "solarize", "equalize", "colour", "sharpness",
)  # fmt: skip
HIGHEST = 30.0
"""The magnitude of full strength."""
COLUMNS = 2
"""Random numbers of one operation of one image: the operation and its direction."""

Change = Callable[[Tensor, Tensor | slice], Tensor]


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    operations: int
    """Operations for each image, one after the other."""
    magnitude: float

    @property
    def columns(self) -> int:
        return COLUMNS * self.operations

    def __call__(self, images: Tensor, chance: Tensor) -> Tensor:
        """(n, C, H, W) from 0 to 255, and (n, columns) random numbers from [0, 1)."""
        for first in range(0, self.columns, COLUMNS):
            which, direction = chance[:, first], chance[:, first + 1]
            chosen = (which * len(OPERATIONS)).long()
            images = apply(images, chosen, torch.where(direction < 0.5, -1.0, 1.0), self.magnitude / HIGHEST)
        return images


def apply(images: Tensor, chosen: Tensor, sign: Tensor, strength: float) -> Tensor:
    """Apply one operation to each image. `strength`: 0 to 1; `sign`: the direction of those that have two."""
    number = {name: index for index, name in enumerate(OPERATIONS)}
    factor = (1 + 0.9 * strength * sign)[:, None, None, None]
    step, threshold = float(2 ** round(4 * strength)), 255 * (1 - strength)

    def where(*names: str) -> Tensor:
        return torch.stack([chosen == number[name] for name in names]).any(0)

    def moved(some: Tensor, rows: Tensor | slice) -> Tensor:
        """Black where an image moved away from."""
        grid = F.affine_grid(matrix[rows], list(some.shape), align_corners=False)
        return F.grid_sample(some, grid, align_corners=False)

    def contrast(some: Tensor, rows: Tensor | slice) -> Tensor:
        return blend(grey(some).mean((1, 2, 3), keepdim=True), some, factor[rows])

    # (n, 2, 3): where each pixel comes from, in coordinates from -1 to 1. Only one amount of an image is not 0.
    amount = {name: where(name) * sign * strength for name in OPERATIONS[1:6]}
    angle = amount["rotate"] * math.radians(30)
    cos, sin = angle.cos(), angle.sin()
    x = torch.stack([cos, -sin + 0.3 * amount["shear-x"], 0.9 * amount["translate-x"]], 1)
    y = torch.stack([sin + 0.3 * amount["shear-y"], cos, 0.9 * amount["translate-y"]], 1)
    matrix = torch.stack([x, y], 1)

    images = _only(where(*OPERATIONS[1:6]), images, moved)
    levels = _only(where("brightness"), images, lambda some, rows: (some * factor[rows]).clamp(0, 255))
    levels = _only(where("contrast"), levels, contrast)
    levels = _only(where("autocontrast"), levels, lambda some, _: autocontrast(some))
    levels = _only(where("posterize"), levels, lambda some, _: (some / step).floor() * step)
    levels = _only(where("solarize"), levels, lambda some, _: torch.where(some >= threshold, 255 - some, some))
    levels = _only(where("equalize"), levels, lambda some, _: equalize(some))
    levels = _only(where("colour"), levels, lambda some, rows: blend(grey(some), some, factor[rows]))
    return _only(where("sharpness"), levels, lambda some, rows: blend(smooth(some), some, factor[rows]))


def _only(chosen: Tensor, images: Tensor, change: Change) -> Tensor:
    """Change the chosen images. A CPU computes these alone; a GPU all, as it would have to be waited for otherwise."""
    if images.device.type != "cpu":
        return _all(chosen, images, change)
    rows = chosen.nonzero()[:, 0]
    return images.index_copy(0, rows, change(images[rows], rows)) if len(rows) else images


def _all(chosen: Tensor, images: Tensor, change: Change) -> Tensor:
    return torch.where(chosen[:, None, None, None], change(images, slice(None)), images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel's levels to the full range."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span = torch.where(high > low, high - low, 255.0)
    return (images - torch.where(high > low, low, 0.0)) * (255 / span)


def equalize(images: Tensor) -> Tensor:
    """Spread each channel's levels so that all are about equally frequent, in the same integers as Pillow."""
    levels = images.round().long().flatten(2)
    count = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    count.scatter_add_(2, levels, torch.ones_like(levels))
    last = count.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    below = count.cumsum(2) - count
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(2, levels).view_as(images).to(images.dtype)


def grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    weights = to_device((0.299, 0.587, 0.114), images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def smooth(images: Tensor) -> Tensor:
    """The mean of a pixel (five times) and its eight neighbours; the edge stays as it is."""
    channels = images.shape[1]
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    inner = F.conv2d(images, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = inner
    return result


def blend(plain: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """`plain` at factor 0, the image itself at 1, and beyond."""
    return (plain + (images - plain) * factor).clamp(0, 255)
