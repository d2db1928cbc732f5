"""RandAugment (Cubuk, Zoph, Shlens, Le 2019) on whole batches, on any device, with each image's own operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Change = Callable[[Tensor, Tensor], Tensor]
"""Function from images and their numbers to changed images."""

OPERATIONS = (
    "identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness", "contrast",
    "autocontrast", "posterize", "solarize", "equalize", "colour", "sharpness",
)  # fmt: skip
KINDS = (OPERATIONS[1:6], *((name,) for name in OPERATIONS[6:]))
"""Operations that are computed alike: those that move pixels are one kind; identity is none."""
HIGHEST = 30.0
"""The magnitude of full strength."""
COLUMNS = 2
"""Random numbers of one operation of one image: the operation and its direction."""
_KIND_OF = np.array([next((n for n, kind in enumerate(KINDS) if name in kind), len(KINDS)) for name in OPERATIONS])


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    operations: int
    """Operations for each image, one after the other."""
    magnitude: float

    @property
    def columns(self) -> int:
        return COLUMNS * self.operations

    def plan(self, chance: NDArray[np.float32]) -> tuple[Tensor, ...]:
        """Sort (n, columns) random numbers by what they choose, on the CPU, which prepares a batch: a GPU then computes
        each kind of operation for its images alone, and the CPU does not wait to learn how many these are.

        For each operation: (n,) numbers of images, sorted by kind, and for each of `KINDS` an empty tensor (0, images):
        a shape is known without looking at the device, and costs no copy."""
        plan = []
        for first in range(0, self.columns, COLUMNS):
            kinds = _KIND_OF[(chance[:, first] * np.float32(len(OPERATIONS))).astype(np.int64)]
            plan.append(torch.from_numpy(np.argsort(kinds, kind="stable")))
            plan += [torch.empty(0, count) for count in np.bincount(kinds, minlength=len(KINDS) + 1)[: len(KINDS)]]
        return tuple(plan)

    def __call__(self, images: Tensor, chance: Tensor, plan: Sequence[Tensor]) -> Tensor:
        """(n, C, H, W) from 0 to 255, (n, columns) random numbers from [0, 1), and their `plan`."""
        images = images.clone()
        for number, first in enumerate(range(0, self.columns, COLUMNS)):
            which, direction = chance[:, first], chance[:, first + 1]
            chosen = (which * len(OPERATIONS)).long()
            order, *sizes = plan[number * (1 + len(KINDS)) : (number + 1) * (1 + len(KINDS))]
            counts = [size.shape[1] for size in sizes]
            rows = torch.split(order[: sum(counts)], counts)
            apply_(images, chosen, torch.where(direction < 0.5, -1.0, 1.0), self.magnitude / HIGHEST, rows)
        return images


def apply_(images: Tensor, chosen: Tensor, sign: Tensor, strength: float, rows: Sequence[Tensor]) -> None:
    """Apply one operation to each image, in place. `strength`: 0 to 1; `sign`: the direction of those that have two.
    `rows`: for each of `KINDS` the images that it changes."""
    step, threshold = float(2 ** round(4 * strength)), 255 * (1 - strength)
    changes: tuple[Change, ...] = (
        lambda some, own: moved(some, chosen[own], sign[own], strength),
        lambda some, own: (some * factor(own)).clamp(0, 255),
        lambda some, own: blend(grey(some).mean((1, 2, 3), keepdim=True), some, factor(own)),
        lambda some, _: autocontrast(some),
        lambda some, _: (some / step).floor() * step,
        lambda some, _: torch.where(some >= threshold, 255 - some, some),
        lambda some, _: equalize(some),
        lambda some, own: blend(grey(some), some, factor(own)),
        lambda some, own: blend(smooth(some), some, factor(own)),
    )

    def factor(own: Tensor) -> Tensor:
        return (1 + 0.9 * strength * sign[own])[:, None, None, None]

    for own, change in zip(rows, changes, strict=True):
        if len(own):
            images.index_copy_(0, own, change(images.index_select(0, own), own))


def moved(images: Tensor, chosen: Tensor, sign: Tensor, strength: float) -> Tensor:
    """Sheared, translated or rotated images; black where an image moved away from."""
    # Where each pixel comes from, in coordinates from -1 to 1. Only one amount of an image is not 0.
    amount = {name: (chosen == OPERATIONS.index(name)) * sign * strength for name in KINDS[0]}
    angle = amount["rotate"] * math.radians(30)
    cos, sin = angle.cos(), angle.sin()
    x = torch.stack([cos, -sin + 0.3 * amount["shear-x"], 0.9 * amount["translate-x"]], 1)
    y = torch.stack([sin + 0.3 * amount["shear-y"], cos, 0.9 * amount["translate-y"]], 1)
    grid = F.affine_grid(torch.stack([x, y], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel's levels to the full range."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span = torch.where(high > low, high - low, 255.0)
    return (images - torch.where(high > low, low, 0.0)) * (255 / span)


def equalize(images: Tensor) -> Tensor:
    """Spread each channel's levels so that all are about equally frequent, in the same integers as Pillow."""
    levels = images.round().long().flatten(2)
    count = torch.zeros(*levels.shape[:2], 256, dtype=torch.int32, device=images.device)
    count.scatter_add_(2, levels, count.new_ones(()).expand_as(levels))
    last = count.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    below = count.cumsum(2, dtype=torch.int32) - count
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, dtype=torch.int32, device=images.device))
    return table.gather(2, levels).view_as(images).to(images.dtype)


def grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = torch.split(images, 1, dim=1)
    return red * 0.299 + green * 0.587 + blue * 0.114


def smooth(images: Tensor) -> Tensor:
    """The mean of a pixel (five times) and its eight neighbours; the edge stays as it is."""
    channels = images.shape[1]
    # The device fills it: to set one value from here, the CPU would wait for the device.
    kernel = 1 + F.pad(torch.full((1, 1), 4.0, device=images.device), (1, 1, 1, 1))
    inner = F.conv2d(images, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = inner
    return result


def blend(plain: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """`plain` at factor 0, the image itself at 1, and beyond."""
    return (plain + (images - plain) * factor).clamp(0, 255)
