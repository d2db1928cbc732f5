"""Random augmentation of a batch: crop and flip as the pixels are copied, the rest on the device that trains.

The random numbers follow from the seed and a sample's position in the stream: see order.uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from trainer.data.images import Pixels
from trainer.data.order import Indices
from trainer.data.randaugment import RandAugment

Chance = NDArray[np.float64]


class Images(Protocol):
    """Images by number, not augmented (data/image_store.py, data/image_cache.py)."""

    labels: Indices

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pixels: ...


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Columns of random numbers: 0 to 2 crop and flip, 3 mixup, 4 to 8 erasing, 9 and 10 size and shape of a crop, the
    others RandAugment's."""

    crop: int
    crop_scale: float = 1.0
    """Smallest share of an image's area in a crop; 1: all crops are squares of side `crop`, no pixel is scaled."""
    padding: int = 0
    """Black pixels around an image that a crop may include, for images no larger than a crop."""
    flip: bool = True
    mixup: float = 0.0
    erase: float = 0.0
    randaugment: RandAugment | None = None

    @property
    def columns(self) -> int:
        return 11 + (self.randaugment.columns if self.randaugment else 0)

    def views(self, images: Images, indices: Indices, chance: Chance) -> NDArray[np.uint8]:
        """(n, crop, crop, channels): a random part of each image, mirrored in half of the cases."""
        mirrored = (chance[:, 2] < 0.5) & self.flip
        if self.crop_scale < 1:
            return self._resized(images, indices, chance, mirrored)
        room = images[int(indices[0])].shape[0] + 2 * self.padding - self.crop
        corners = (chance[:, :2] * (room + 1)).astype(np.int64) - self.padding
        return cut(images, indices, corners, mirrored, self.crop)

    def _resized(
        self, images: Images, indices: Indices, chance: Chance, mirrored: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        """Parts of any size and of shapes from 3:4 to 4:3, scaled to the size of a crop (Szegedy et al. 2014).

        As torchvision's RandomResizedCrop, which draws area and shape again while a part is longer than the image: the
        same distribution, from two numbers. Of the larger areas fewer shapes fit, so they are rarer."""
        side, _, channels = images[int(indices[0])].shape
        areas = np.linspace(self.crop_scale, 1, 1025)
        share = np.interp(chance[:, 9], *_cumulative(np.minimum(1, -np.log(areas) / np.log(4 / 3)), areas))
        aspect = np.exp((2 * chance[:, 10] - 1) * np.minimum(np.log(4 / 3), -np.log(share)))
        sizes = side * np.sqrt(np.stack([share * aspect, share / aspect], 1))
        corners = chance[:, :2] * (side - sizes)
        boxes = np.hstack([corners, np.minimum(corners + sizes, side)])
        views = np.empty((len(indices), self.crop, self.crop, channels), np.uint8)
        for view, index, box, mirror in zip(views, indices, boxes, mirrored, strict=True):
            image = Image.fromarray(images[int(index)].squeeze())
            part = np.asarray(image.resize((self.crop, self.crop), Image.Resampling.BILINEAR, box=tuple(box)))
            view[:] = part[:, :: -1 if mirror else 1].reshape(view.shape)
        return views

    def plan(self, chance: NDArray[np.float32]) -> tuple[Tensor, ...]:
        """The choices that the CPU must know before `on_device`."""
        return self.randaugment.plan(chance[:, 11:]) if self.randaugment else ()

    def on_device(self, images: Tensor, chance: Tensor, plan: Sequence[Tensor] = ()) -> Tensor:
        """(n, C, H, W) from 0 to 255, with the numbers that chose the views, and the `plan` of these."""
        if self.randaugment is not None:
            images = self.randaugment(images, chance[:, 11:], plan)
        if not self.erase:
            return images
        # Random erasing (Zhong et al. 2017): a part of the image becomes its mean.
        area = 0.02 + 0.31 * chance[:, 5]
        aspect = torch.exp((chance[:, 6] * 2 - 1) * np.log(3.3))
        height, width = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        top, left = chance[:, 7] * (1 - height), chance[:, 8] * (1 - width)
        hit = chance[:, 4] < self.erase
        line = (torch.arange(images.shape[2], device=images.device) + 0.5) / images.shape[2]
        rows = (line >= top[:, None]) & (line < (top + height)[:, None])
        columns = (line >= left[:, None]) & (line < (left + width)[:, None])
        hole = rows[:, :, None] & columns[:, None, :] & hit[:, None, None]
        return torch.where(hole[:, None], images.mean((2, 3), keepdim=True), images)

    def weights(self, chance: Chance) -> NDArray[np.float32]:
        """Share of each image in its mixture; the rest is its partner's."""
        return beta_quantile(chance[:, 3], self.mixup).astype(np.float32)


def _cumulative(density: Chance, points: Chance) -> tuple[Chance, Chance]:
    """Share of the distribution below each of the evenly spaced `points`, and these: for np.interp, its quantiles."""
    below = np.append(0, np.cumsum(density[1:] + density[:-1]))
    return below / below[-1], points


def middle(images: Images, indices: Indices, crop: int) -> NDArray[np.uint8]:
    """The middle of each image, as in evaluation."""
    corner, count = (images[int(indices[0])].shape[0] - crop) // 2, len(indices)
    return cut(images, indices, np.full((count, 2), corner, np.int64), np.zeros(count, bool), crop)


def cut(
    images: Images, indices: Indices, corners: Indices, mirrored: NDArray[np.bool_], crop: int
) -> NDArray[np.uint8]:
    """Squares of side `crop` from (y, x); black outside of an image."""
    side, _, channels = images[int(indices[0])].shape
    views = np.zeros((len(indices), crop, crop, channels), np.uint8)
    for view, index, (y, x), mirror in zip(views, indices, corners, mirrored, strict=True):
        top, bottom, left, right = max(y, 0), min(y + crop, side), max(x, 0), min(x + crop, side)
        target = view[:, ::-1] if mirror else view
        target[top - y : bottom - y, left - x : right - x] = images[int(index)][top:bottom, left:right]
    return views


def partners(positions: Indices, samples: int) -> Indices:
    """The position with which each is mixed: its neighbour in the epoch, or itself for the last of an odd number. A
    pair is the same for any division of the stream into steps, ranks and batches."""
    epoch, offset = np.divmod(positions, samples)
    other = offset ^ 1
    return np.where(other < samples, epoch * samples + other, positions)


def beta_quantile(share: Chance, alpha: float) -> Chance:
    """Beta(alpha, alpha) from uniform numbers: its quantile function.

    On [0, 1/2] the integral of (t - t²)^(alpha - 1) is x^alpha times a series that converges fast; the upper half
    mirrors the lower one. Below alpha 1 the function is steep at 0, where the points are dense.
    """
    x = 0.5 * np.linspace(0, 1, 2049) ** (1 / min(alpha, 1.0))
    term, series = np.ones_like(x), np.full_like(x, 1 / alpha)
    for k in range(1, 60):
        term = term * (k - alpha) / k * x
        series = series + term / (alpha + k)
    integral = x**alpha * series
    lower = np.interp(np.minimum(share, 1 - share), integral / integral[-1] / 2, x)
    return np.where(share < 0.5, lower, 1 - lower)
