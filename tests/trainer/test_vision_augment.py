"""Random changes of pictures: the same as Pillow's, and the same however the stream is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from tests.trainer.late_device import NAME, late_device
from trainer.data import randaugment as ra
from trainer.data.augment import Augmentation, beta_quantile, cut, middle, partners
from trainer.data.order import uniform
from trainer.data.randaugment import OPERATIONS, RandAugment

NOISE = np.random.default_rng(1)
PIXELS = (NOISE.integers(0, 200, (24, 24, 3)) * np.linspace(0.2, 1, 24)[:, None, None]).astype(np.uint8)
PICTURE = Image.fromarray(PIXELS)


def planes(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float()


def one(operation: str, strength: float, sign: float = 1.0) -> np.ndarray:
    changed, chosen = planes(PIXELS), torch.tensor([OPERATIONS.index(operation)])
    rows = [torch.arange(int(operation in kind)) for kind in ra.KINDS]
    ra.apply_(changed, chosen, torch.tensor([sign]), strength, rows)
    return changed[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("identity", PICTURE),
        ("autocontrast", ImageOps.autocontrast(PICTURE)),
        ("equalize", ImageOps.equalize(PICTURE)),
        ("posterize", ImageOps.posterize(PICTURE, 6)),
        ("solarize", ImageOps.solarize(PICTURE, 128)),
        ("brightness", ImageEnhance.Brightness(PICTURE).enhance(1.45)),
        ("contrast", ImageEnhance.Contrast(PICTURE).enhance(1.45)),
        ("colour", ImageEnhance.Color(PICTURE).enhance(1.45)),
        ("sharpness", ImageEnhance.Sharpness(PICTURE).enhance(1.45)),
    ],
)
def test_operations_are_pillows(operation: str, expected: Image.Image) -> None:
    """Save for rounding, which Pillow does in between."""
    assert np.abs(one(operation, 0.5) - np.asarray(expected, np.float64)).max() <= 1.5


def test_rotation_and_shear_move_as_pillow_does() -> None:
    turned = np.asarray(PICTURE.rotate(15, Image.Resampling.BILINEAR), np.float64)
    found = [one("rotate", 0.5, sign)[4:-4, 4:-4] for sign in (1, -1)]
    assert min(np.abs(each - turned[4:-4, 4:-4]).max() for each in found) < 4
    shift = -0.15 * 12  # the middle row stays where it is
    sheared = PICTURE.transform((24, 24), Image.Transform.AFFINE, (1, 0.15, shift, 0, 1, 0), Image.Resampling.BILINEAR)
    assert np.abs(one("shear-x", 0.5) - np.asarray(sheared, np.float64))[:, 4:-4].max() < 4


@pytest.mark.parametrize(("operation", "axis"), [("translate-x", 1), ("translate-y", 0)])
def test_translation_moves_by_whole_pixels_and_leaves_black(operation: str, axis: int) -> None:
    strength = 6 / (24 * 0.45)
    moved = one(operation, strength)
    expected = np.roll(PIXELS, -6, axis).astype(np.float64)
    expected[(slice(None),) * axis + (slice(-6, None),)] = 0
    assert np.abs(moved - expected).max() < 1e-2


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_drawn_and_no_strength_changes_little(operation: str) -> None:
    """Magnitude 0 moves or fades nothing; an operation without a strength is the exception."""
    if operation in ("autocontrast", "equalize"):
        assert np.abs(one(operation, 0) - PIXELS).max() > 5
    elif operation == "solarize":
        assert np.abs(one(operation, 0) - PIXELS).max() == 0
    else:
        assert np.abs(one(operation, 0) - PIXELS).max() < 1e-2
    if operation != "identity":
        assert np.abs(one(operation, 1) - PIXELS).max() > 5
    drawn = (uniform(1, np.arange(500), 2)[:, 0] * len(OPERATIONS)).astype(int)
    assert OPERATIONS.index(operation) in drawn


def test_grey_pictures_are_augmented_too() -> None:
    numbers = uniform(3, np.arange(64), 4).astype(np.float32)
    chance = torch.from_numpy(numbers)
    grey = torch.from_numpy(NOISE.integers(0, 256, (64, 1, 12, 12))).float()
    augment = RandAugment(operations=2, magnitude=15)
    changed = augment(grey, chance, augment.plan(numbers))
    assert changed.shape == grey.shape
    assert 0 <= changed.min() <= changed.max() <= 255.5
    assert (changed != grey).flatten(1).any(1).float().mean() > 0.5


def test_each_image_gets_its_own_operations_in_any_company() -> None:
    """All at once as one by one, also on a device that fails if it is waited for."""
    numbers = uniform(3, np.arange(60), 4).astype(np.float32)
    pictures = torch.from_numpy(NOISE.integers(0, 256, (60, 3, 24, 24))).float()
    augment = RandAugment(operations=2, magnitude=15)
    together = augment(pictures, torch.from_numpy(numbers), augment.plan(numbers))
    for row in range(60):
        own = slice(row, row + 1)
        alone = augment(pictures[own], torch.from_numpy(numbers[own]), augment.plan(numbers[own]))
        assert torch.allclose(alone, together[own], atol=2e-3)
    with late_device(within=augment.__call__) as waits:
        late, chance, *plan = (part.to(NAME) for part in (pictures, torch.from_numpy(numbers), *augment.plan(numbers)))
        waits.raises = True
        late = augment(late, chance, plan)
        waits.raises = False
        assert late.cpu().tolist() == together.tolist()


class Numbers:
    """Pictures whose pixels name them."""

    def __init__(self, count: int, side: int = 12) -> None:
        self.labels = np.arange(count, dtype=np.int64)
        y, x = np.mgrid[:side, :side]
        self._pixels = np.stack([np.stack([y, x, np.full_like(x, i)], -1) for i in range(count)]).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._pixels[index]


FULL = Augmentation(crop=8, mixup=0.4, erase=0.5, randaugment=RandAugment(operations=2, magnitude=12))


def test_crops_reach_every_corner_and_half_are_mirrored() -> None:
    positions = np.arange(4000)
    chance = uniform(1, positions, FULL.columns)
    views = FULL.views(Numbers(1), np.zeros(4000, np.int64), chance)
    ascending = views[:, 0, 1, 1] > views[:, 0, 0, 1]
    assert 0.45 < ascending.mean() < 0.55
    top, left = views[:, 0, 0, 0], views[:, 0, :, 1].min(1)
    assert set(zip(top.tolist(), left.tolist(), strict=True)) == {(y, x) for y in range(5) for x in range(5)}
    unflipped = Augmentation(crop=8, flip=False).views(Numbers(1), np.zeros(4000, np.int64), chance)
    assert (unflipped[:, 0, 1, 1] > unflipped[:, 0, 0, 1]).all()


SCALED = Augmentation(crop=8, crop_scale=0.08)


def test_scaled_crops_have_the_sizes_of_torchvisions() -> None:
    """The quantiles of areas and shapes are those of 200,000 crops by its RandomResizedCrop."""
    side, count = 240, 2000
    images, zeros = Numbers(1, side), np.zeros(count, np.int64)
    chance = uniform(1, np.arange(count), SCALED.columns)
    views = SCALED.views(images, zeros, chance).astype(float)
    # The pixels of a ramp: a view's first and last tell what it spans.
    height = (views[:, -1, :, 0] - views[:, 0, :, 0]).mean(1) * 8 / 7
    width = np.abs(views[:, :, -1, 1] - views[:, :, 0, 1]).mean(1) * 8 / 7
    area, aspect = height * width / side**2, width / height
    assert 0.07 < area.min() < 0.1
    assert area.max() < 1.01
    assert np.quantile(area, [0.25, 0.5, 0.75, 0.95]) == pytest.approx([0.283, 0.479, 0.678, 0.852], abs=0.02)
    assert np.quantile(aspect, [0.05, 0.25, 0.75, 0.95]) == pytest.approx([0.776, 0.877, 1.141, 1.289], abs=0.02)
    assert views[..., 0].min() < 10
    assert views[..., 0].max() > side - 10
    assert 0.45 < (views[:, 0, 0, 1] > views[:, 0, -1, 1]).mean() < 0.55


@pytest.mark.parametrize("channels", [1, 3])
def test_a_scaled_crop_is_pillows(channels: int) -> None:
    images = Numbers(3, 20)
    images._pixels = NOISE.integers(0, 256, (3, 20, 20, channels), dtype=np.uint8)
    chance = uniform(2, np.arange(3), SCALED.columns)
    chance[:, 9], chance[:, 10], chance[:, 2] = 1.0, 0.5, [0.1, 0.9, 0.9]  # all of the image, the first one mirrored
    views = SCALED.views(images, np.arange(3), chance)
    for number, view in enumerate(views):
        whole = Image.fromarray(images[number].squeeze()).resize((8, 8), Image.Resampling.BILINEAR)
        expected = np.asarray(whole).reshape(8, 8, channels)
        assert (view == (expected[:, ::-1] if number == 0 else expected)).all()


def test_padding_is_black_and_the_middle_is_the_middle() -> None:
    whole = np.full((1, 4, 4, 1), 9, np.uint8)
    whole_images = Numbers(1, 4)
    whole_images._pixels = whole
    views = cut(whole_images, np.zeros(2, np.int64), np.array([[-2, -2], [2, 0]]), np.array([False, False]), 4)
    assert views[0, :, :, 0].tolist() == [[0] * 4, [0] * 4, [0, 0, 9, 9], [0, 0, 9, 9]]
    assert views[1, :, :, 0].tolist() == [[9] * 4, [9] * 4, [0] * 4, [0] * 4]
    assert middle(Numbers(1), np.array([0]), 8)[0, 0, 0].tolist() == [2, 2, 0]


def test_a_part_of_some_pictures_is_erased() -> None:
    chance = torch.from_numpy(uniform(5, np.arange(1000), 11).astype(np.float32))
    pictures = torch.from_numpy(NOISE.random((1000, 1, 16, 16))).float()
    changed = Augmentation(crop=16, erase=0.3).on_device(pictures, chance) != pictures
    share = changed.flatten(1).float().mean(1)
    assert 0.25 < (share > 0).float().mean() < 0.35
    assert share[share > 0].min() > 0.01
    assert share.max() < 0.45
    assert not (Augmentation(crop=16).on_device(pictures, chance) != pictures).any()


@given(st.integers(2, 30), st.integers(0, 200))
def test_partners_are_mutual_and_of_one_epoch(samples: int, position: int) -> None:
    positions = np.array([position])
    other = partners(positions, samples)
    assert partners(other, samples) == positions
    assert other // samples == positions // samples
    assert abs(int(other[0]) - position) <= 1


@settings(max_examples=30)
@given(st.floats(0.05, 4))
def test_mixing_weights_are_of_the_beta_distribution(alpha: float) -> None:
    weights = beta_quantile((np.arange(100_000) + 0.5) / 100_000, alpha)
    assert weights.mean() == pytest.approx(0.5, abs=1e-3)
    assert weights.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=5e-3)
    assert (np.diff(weights) >= 0).all()


def test_the_uniform_distribution_is_one_of_them() -> None:
    share = np.linspace(0, 1, 101)
    assert beta_quantile(share, 1.0) == pytest.approx(share, abs=1e-6)
