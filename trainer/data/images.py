"""Images of the user, a folder for each class, or Fashion-MNIST from Debian's package."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainer.data.debian import Apt, unpack
from trainer.data.files import by_name_hash, files_in
from trainer.data.order import Indices
from trainer.errors import ConfigurationError

Pixels = NDArray[np.uint8]
"""(height, width, channels), as channels_last requires; a crop copies each row in one piece."""
VALIDATION_SHARE = 0.1
_VALIDATION_FOLDERS = ("val", "validation", "valid", "test")
FASHION = "dataset-fashion-mnist"
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Size of stored images, and of the crop that a model reads."""

    stored: int
    """Side of the stored square: somewhat larger than `crop`, so that crops can differ."""
    crop: int
    channels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.stored, self.stored, self.channels


@dataclass(frozen=True, kw_only=True)
class Split:
    names: tuple[str, ...]
    labels: Indices
    open: Callable[[int], Image.Image]
    """Open the image of that number. OSError: it cannot be read."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Images with their classes."""

    classes: tuple[str, ...]
    splits: Mapping[str, Split]
    """`train` and `validation`."""
    content: str
    """Hash of the content, the same on every machine that has a copy."""


def pixels(image: Image.Image, frame: Frame) -> Pixels:
    """Cut the middle square of an image, and scale it to the stored size."""
    image = image.convert("RGB" if frame.channels == 3 else "L")
    width, height = image.size
    if (width, height) != frame.shape[:2]:
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        image = image.resize(frame.shape[:2], Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    return np.asarray(image, np.uint8).reshape(frame.shape)


# ── A folder for each class ───────────────────────────────────────────────────────────────────────


def from_folder(folder: Path, validation_share: float = VALIDATION_SHARE) -> Gallery:
    """Read FOLDER/train/CLASS/… and FOLDER/val/CLASS/…; or FOLDER/CLASS/…, of which a part is held back by the files'
    names alone: one more image moves at most one file."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder; expected a folder with one folder of images per class")
    apart = next((folder / name for name in _VALIDATION_FOLDERS if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() and apart:
        found = {"train": _by_class(folder / "train"), "validation": _by_class(apart)}
        strange = sorted(set(found["validation"]) - set(found["train"]))
        if strange:
            raise ConfigurationError(f"{apart}: no such class in {folder / 'train'}: {', '.join(strange)}")
    else:
        found = {"train": {}, "validation": {}}
        for name, files in _by_class(folder).items():
            count = min(max(1, round(validation_share * len(files))), len(files) - 1) if validation_share > 0 else 0
            held_back = set(by_name_hash(files, folder)[:count])
            found["train"][name] = [file for file in files if file not in held_back]
            found["validation"][name] = sorted(held_back)
    classes = tuple(found["train"])
    if len(classes) < 2:
        raise ConfigurationError(
            f"{folder}: found {len(classes)} folders with images, expected two or more: one for each class"
        )
    digest, splits = hashlib.sha256(), {}
    for split, by_class in found.items():
        for files in by_class.values():
            for file in files:
                digest.update(f"{split}\0{file.relative_to(folder)}\0{file.stat().st_size}\n".encode())
        pairs = [(file, label) for label, name in enumerate(classes) for file in by_class.get(name, ())]
        splits[split] = Split(
            names=tuple(str(file.relative_to(folder)) for file, _ in pairs),
            labels=np.array([label for _, label in pairs], np.int64),
            open=FileReader([file for file, _ in pairs]),
        )
    return Gallery(classes=classes, splits=splits, content=digest.hexdigest())


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """List the files of each class, except hidden ones; files that are no images are reported later."""
    found = {}
    for sub in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if files := files_in(sub):
            found[sub.name] = files
    return found


@dataclass(frozen=True)
class FileReader:
    """Reader of files by number: a class, not a closure, because it is pickled for worker processes."""

    files: list[Path]

    def __call__(self, index: int) -> Image.Image:
        return open_image(self.files[index])


def open_image(file: Path) -> Image.Image:
    """Decode an image. OSError: the file is no image, or broken."""
    try:
        image: Image.Image
        with Image.open(file) as image:
            image.load()
        return image
    except (ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise OSError(str(error)) from error


# ── Fashion-MNIST ─────────────────────────────────────────────────────────────────────────────────


def fashion_mnist(say: Callable[[str], None], apt: Apt | None = None) -> Gallery:
    """70 000 grey images of 28 × 28 (Xiao, Rasul, Vollgraf 2017, MIT licence), fetched by the ordinary apt client."""
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        apt = apt or Apt(home=Path(folder) / "apt")
        root = Path(folder) / FASHION
        complaint = apt.update() or apt.download(FASHION, root) or unpack(root)
        if complaint:
            raise ConfigurationError(
                f"{FASHION} could not be fetched: {complaint}\n"
                "give your own images instead: --images FOLDER (one folder for each class)"
            )
        say(f"  {FASHION} fetched")
        return read_fashion(root / "usr/share/datasets/fashion-mnist")


def read_fashion(folder: Path) -> Gallery:
    splits, digest = {}, hashlib.sha256()
    for name, stem in (("train", "train"), ("validation", "t10k")):
        images, labels = (read_idx(folder / f"{stem}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
        digest.update(images.tobytes() + labels.tobytes())
        splits[name] = Split(
            names=tuple(f"{stem}/{number}" for number in range(len(images))),
            labels=labels.astype(np.int64),
            open=partial(_image_of, images),
        )
    return Gallery(classes=FASHION_CLASSES, splits=splits, content=digest.hexdigest())


def _image_of(images: Pixels, index: int) -> Image.Image:
    image: Image.Image = Image.fromarray(images[index])
    return image


def read_idx(file: Path) -> Pixels:
    """Read MNIST's format: a magic number that ends in the number of dimensions, their sizes, then bytes."""
    content = gzip.decompress(file.read_bytes())
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
