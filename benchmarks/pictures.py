"""Generated JPEG files, one folder per class, that take as long to decode as photographs."""

from __future__ import annotations

import shutil
from pathlib import Path

CLASSES = 10
QUALITY = 90


def make(folder: Path, count: int, side: int) -> None:
    """Write `count` images, slightly larger than `side`; deterministic. Existing files are kept."""
    import numpy as np
    from PIL import Image

    for number in range(count):
        file = folder / f"class-{number % CLASSES}" / f"{number:06}.jpg"
        if file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        chance = np.random.default_rng(number)
        height, width = chance.integers(int(1.2 * side), int(1.8 * side), size=2)
        # Coarse shapes with fine grain: about as many bytes per pixel as a camera's files.
        coarse = Image.fromarray(chance.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        shapes = np.asarray(coarse.resize((int(width), int(height)), Image.Resampling.BICUBIC), np.int16)
        grain = chance.integers(-12, 13, shapes.shape, dtype=np.int16)
        whole = file.with_suffix(".part")
        Image.fromarray((shapes + grain).clip(0, 255).astype(np.uint8)).save(whole, "JPEG", quality=QUALITY)
        whole.rename(file)


def repeat(folder: Path, into: Path, times: int) -> None:
    """Make a folder with each file so many times: a loader that ends an epoch every few batches waits at each end."""
    for file in sorted(folder.rglob("*.jpg")):
        target = into / file.parent.name
        target.mkdir(parents=True, exist_ok=True)
        for number in range(times):
            shutil.copyfile(file, target / f"{file.stem}-{number}.jpg")
