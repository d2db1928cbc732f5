"""Images as they come from the user: a folder for each class, or Fashion-MNIST from Debian's package."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainer.data.debian import Apt, unpack
from trainer.data.order import Indices
from trainer.errors import ConfigurationError

Pixels = NDArray[np.uint8]
"""(height, width, channels): what channels_last wants, and rows that a crop copies in one piece."""
VALIDATION_SHARE = 0.1
_VALIDATION_FOLDERS = ("val", "validation", "valid", "test")
FASHION = "dataset-fashion-mnist"
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Size of a stored picture, and of the crop that a model sees."""

    stored: int
    """The side of the square that is kept: somewhat larger than `crop`, so that crops can differ."""
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
    """The picture of that number; raises OSError where there is none to see."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pictures and what they show."""

    classes: tuple[str, ...]
    splits: Mapping[str, Split]
    """`train` and `validation`."""
    content: str
    """A hash of what is in it, the same on every machine that has a copy."""


def pixels(picture: Image.Image, frame: Frame) -> Pixels:
    """The middle square of a picture, scaled to the side that is kept: nothing of chance is in it yet."""
    picture = picture.convert("RGB" if frame.channels == 3 else "L")
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    if (width, height) != frame.shape[:2]:
        box = (left, top, left + side, top + side)
        picture = picture.resize(frame.shape[:2], Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    return np.asarray(picture, np.uint8).reshape(frame.shape)


# ── A folder for each class ───────────────────────────────────────────────────────────────────────


def from_folder(folder: Path, validation_share: float = VALIDATION_SHARE) -> Gallery:
    """FOLDER/train/CLASS/… and FOLDER/val/CLASS/…; or FOLDER/CLASS/…, of which a part is held back."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder; expected a folder with one folder of images per class")
    apart = next((folder / name for name in _VALIDATION_FOLDERS if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() and apart:
        found = {"train": _by_class(folder / "train"), "validation": _by_class(apart)}
        strange = sorted(set(found["validation"]) - set(found["train"]))
        if strange:
            raise ConfigurationError(f"{apart}: no such class in {folder / 'train'}: {', '.join(strange)}")
    else:
        everything = _by_class(folder)
        held_back = {name: _held_back(files, folder, validation_share) for name, files in everything.items()}
        train = {name: [f for f in files if f not in held_back[name]] for name, files in everything.items()}
        found = {"train": train, "validation": {name: sorted(files) for name, files in held_back.items()}}
    classes = tuple(found["train"])
    if len(classes) < 2:
        raise ConfigurationError(
            f"{folder}: found {len(classes)} folders with images, expected two or more: one for each class"
        )
    splits = {name: _split(folder, classes, files) for name, files in found.items()}
    return Gallery(classes=classes, splits=splits, content=_content(folder, found))


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """Every file save hidden ones: what is no image will be named, and nothing is silently left out."""
    found = {}
    for sub in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        files = sorted(
            p for p in sub.rglob("*")
            if p.is_file() and not any(part.startswith(".") for part in p.relative_to(sub).parts)
        )  # fmt: skip
        if files:
            found[sub.name] = files
    return found


def _held_back(files: list[Path], folder: Path, share: float) -> set[Path]:
    """Files for validation. The choice depends on their own names alone: one more image moves at most one file."""
    by_hash = sorted(files, key=lambda file: hashlib.sha256(str(file.relative_to(folder)).encode()).digest())
    count = min(max(1, round(share * len(files))), len(files) - 1) if share > 0 else 0
    return set(by_hash[:count])


def _split(folder: Path, classes: tuple[str, ...], by_class: Mapping[str, list[Path]]) -> Split:
    pairs = [(file, label) for label, name in enumerate(classes) for file in by_class.get(name, ())]
    files = [file for file, _ in pairs]
    return Split(
        names=tuple(str(file.relative_to(folder)) for file in files),
        labels=np.array([label for _, label in pairs], np.int64),
        open=FileReader(files),
    )


@dataclass(frozen=True)
class FileReader:
    """Opens files by number; a class and no closure, as it travels to worker processes."""

    files: list[Path]

    def __call__(self, index: int) -> Image.Image:
        return open_image(self.files[index])


def open_image(file: Path) -> Image.Image:
    """The picture, decoded; OSError for whatever is wrong with the file."""
    try:
        picture: Image.Image
        with Image.open(file) as picture:
            picture.load()
        return picture
    except (ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise OSError(str(error)) from error


def _content(folder: Path, found: Mapping[str, Mapping[str, list[Path]]]) -> str:
    digest = hashlib.sha256()
    for split, by_class in found.items():
        for files in by_class.values():
            for file in files:
                digest.update(f"{split}\0{file.relative_to(folder)}\0{file.stat().st_size}\n".encode())
    return digest.hexdigest()


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
            open=ArrayReader(images),
        )
    return Gallery(classes=FASHION_CLASSES, splits=splits, content=digest.hexdigest())


@dataclass(frozen=True)
class ArrayReader:
    images: Pixels

    def __call__(self, index: int) -> Image.Image:
        picture: Image.Image = Image.fromarray(self.images[index])
        return picture


def read_idx(file: Path) -> Pixels:
    """The format of MNIST: a magic number that ends in the number of dimensions, their sizes, then bytes."""
    content = gzip.decompress(file.read_bytes())
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
