"""Prepared images: decoded and scaled once, uint8 in memory-mapped files, and a manifest."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.images import Frame, Gallery, Pixels, Split, pixels
from trainer.data.order import Indices
from trainer.data.prepared_folder import IMAGES, PreparedFolder, remove_all_but, store
from trainer.errors import ConfigurationError
from trainer.limits import usable_threads

AT_ONCE = 1024
"""Images in memory while preparing: it does not grow with their number."""


@dataclass(frozen=True, kw_only=True)
class PreparedImages(PreparedFolder):
    kind = IMAGES

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.manifest["classes"])

    @property
    def content(self) -> str:
        """Hash of all hashes."""
        return hashlib.sha256("".join(str(entry["sha256"]) for entry in self.files).encode()).hexdigest()

    @property
    def frame(self) -> Frame:
        return Frame(**self.manifest["frame"])


class StoredImages:
    """One split, mapped into memory: every process on the machine shares the same pages."""

    def __init__(self, prepared: PreparedImages, split: str) -> None:
        self._made_of = (prepared, split)
        entry = prepared.manifest["splits"][split]
        self.labels: Indices = np.fromfile(prepared.folder / entry["labels"]["file"], "<i8").astype(np.int64)
        shape, file = (len(self.labels), *prepared.frame.shape), prepared.folder / entry["pixels"]["file"]
        self._pixels = np.memmap(file, np.uint8, "r", shape=shape) if len(self.labels) else np.empty(shape, np.uint8)

    def __reduce__(self) -> tuple[type[StoredImages], tuple[PreparedImages, str]]:
        """Let a worker process map the file again instead of receiving gigabytes."""
        return StoredImages, self._made_of

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pixels:
        image: Pixels = self._pixels[index]
        return image


def prepare(gallery: Gallery, folder: Path, frame: Frame) -> tuple[PreparedImages, bool]:
    """(data, True) if the folder was rebuilt from the gallery; (data, False) if it already holds that content."""
    fingerprint = hashlib.sha256(f"{IMAGES.format} {frame} {gallery.content} {gallery.classes}".encode()).hexdigest()
    if there := PreparedImages.kept(folder, input_sha256=fingerprint):
        return there, False
    folder.mkdir(parents=True, exist_ok=True)
    earlier: set[str] = set()
    with suppress(ConfigurationError):
        earlier = {str(entry["file"]) for entry in PreparedImages.open(folder).files}
    bad: list[str] = []
    statistics = Statistics(frame.channels)
    splits = {}
    for name, split in gallery.splits.items():
        splits[name] = {
            "images": len(split),
            "pixels": _store_pixels(folder, name, split, frame, statistics, bad),
            "labels": store(folder, name, ".labels", split.labels.astype("<i8").tobytes()),
        }
    if bad:
        remove_all_but(folder, earlier)
        raise ConfigurationError(
            "\n".join(sorted(bad)) + f"\n{len(bad)} of {sum(map(len, gallery.splits.values()))} files are no images:"
            " fix them or remove them from the folder"
        )
    manifest = {
        "input_sha256": fingerprint, "classes": list(gallery.classes),
        "frame": asdict(frame), **statistics.result(), "splits": splits,
    }  # fmt: skip
    return PreparedImages.finish(folder, manifest), True


class Statistics:
    """Mean and standard deviation per channel."""

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._sum = np.zeros(channels)
        self._squares = np.zeros(channels)

    def add(self, images: NDArray[np.uint8]) -> None:
        values = images.reshape(-1, images.shape[-1]).astype(np.float64) / 255
        self._count += len(values)
        self._sum += values.sum(0)
        self._squares += (values**2).sum(0)

    def result(self) -> dict[str, list[float]]:
        mean = self._sum / max(1, self._count)
        std = np.sqrt(np.maximum(self._squares / max(1, self._count) - mean**2, 0))
        # The deviation of images all of one colour is 0; 1 leaves them as they are.
        return {"mean": [round(float(x), 4) for x in mean], "std": [round(float(x), 4) or 1.0 for x in std]}


def _store_pixels(
    folder: Path, name: str, split: Split, frame: Frame, statistics: Statistics, bad: list[str]
) -> dict[str, Any]:
    """Decode the split's images in order, some at a time; Pillow decodes without the interpreter's lock."""

    def decode(index: int) -> Pixels:
        try:
            return pixels(split.open(index), frame)
        except OSError as error:
            bad.append(f"{split.names[index]}: {error}")
            return np.zeros(frame.shape, np.uint8)

    digest, scratch = hashlib.sha256(), folder / f".{name}.{os.getpid()}.tmp"
    try:
        with scratch.open("wb") as file, ThreadPoolExecutor(usable_threads()) as pool:
            for start in range(0, len(split), AT_ONCE):
                part = np.stack(list(pool.map(decode, range(start, min(start + AT_ONCE, len(split))))))
                content = part.tobytes()
                file.write(content)
                digest.update(content)
                if name == "train":
                    statistics.add(part)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        stored = f"{name}-{digest.hexdigest()[:12]}.pixels"
        scratch.replace(folder / stored)
    finally:
        scratch.unlink(missing_ok=True)
    return {"file": stored, "bytes": size, "sha256": digest.hexdigest()}
