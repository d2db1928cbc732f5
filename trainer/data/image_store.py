"""Prepared images: decoded and scaled once, uint8 in memory-mapped files, and a manifest."""

from __future__ import annotations

import hashlib
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.data_parts import here
from trainer.data.images import Frame, Gallery, Pixels, Split, pixels
from trainer.data.order import Indices
from trainer.data.prepared_folder import IMAGES, PreparedFolder, remove_all_but, shard_limit, store
from trainer.errors import ConfigurationError
from trainer.limits import usable_threads

SHARD_BYTES = 64 << 20
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
        """Hash of all hashes, the same for every part."""
        return str(self.manifest.get("content_sha256") or _content(self.files))

    @property
    def frame(self) -> Frame:
        return Frame(**self.manifest["frame"])


class StoredImages:
    """One split, mapped into memory: every process on the machine shares the same pages."""

    def __init__(self, prepared: PreparedImages, split: str) -> None:
        self._made_of = (prepared, split)
        entry = prepared.manifest["splits"][split]
        self.all_labels: Indices = np.fromfile(prepared.folder / entry["labels"]["file"], "<i8").astype(np.int64)
        """Labels of the images of all nodes."""
        # Data that was prepared before there were shards has one file of pixels.
        shards = entry.get("shards") or [{**entry["pixels"], "images": len(self.all_labels)}]
        ends = list(accumulate(int(shard["images"]) for shard in shards))
        held = [number for number in here(shards) if shards[number]["images"]]
        self._shards = [
            np.memmap(
                prepared.folder / str(shards[number]["file"]), np.uint8, "r",
                shape=(int(shards[number]["images"]), *prepared.frame.shape),
            )
            for number in held
        ]  # fmt: skip
        self._ends = list(accumulate(map(len, self._shards)))
        rows = [np.arange(ends[number] - shards[number]["images"], ends[number]) for number in held]
        self.labels: Indices = self.all_labels[np.concatenate(rows)] if rows else np.empty(0, np.int64)

    def __reduce__(self) -> tuple[type[StoredImages], tuple[PreparedImages, str]]:
        """Let a worker process map the file again instead of receiving gigabytes."""
        return StoredImages, self._made_of

    def __len__(self) -> int:
        """Count the images that are here."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Pixels:
        shard = bisect_right(self._ends, index)
        image: Pixels = self._shards[shard][index - (self._ends[shard - 1] if shard else 0)]
        return image


def prepare(gallery: Gallery, folder: Path, frame: Frame) -> tuple[PreparedImages, bool]:
    """(data, True) if the folder was rebuilt from the gallery; (data, False) if it already holds that content."""
    fingerprint = hashlib.sha256(f"{IMAGES.format} {frame} {gallery.content} {gallery.classes}".encode()).hexdigest()
    if there := PreparedImages.existing(folder, input_sha256=fingerprint):
        return there, False
    folder.mkdir(parents=True, exist_ok=True)
    earlier: set[str] = set()
    with suppress(ConfigurationError):
        earlier = {str(entry["file"]) for entry in PreparedImages.open(folder).files}
    bad: list[str] = []
    statistics = Statistics(frame.channels)
    splits: dict[str, dict[str, Any]] = {}
    for name, split in gallery.splits.items():
        splits[name] = {
            "images": len(split),
            "shards": _store_pixels(folder, name, split, frame, statistics, bad),
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
        "content_sha256": _content([one for split in splits.values() for one in (*split["shards"], split["labels"])]),
    }  # fmt: skip
    return PreparedImages.finish(folder, manifest), True


def _content(files: Iterable[Mapping[str, Any]]) -> str:
    return hashlib.sha256("".join(str(entry["sha256"]) for entry in files).encode()).hexdigest()


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
) -> list[dict[str, Any]]:
    """Decode the split's images in order, some at a time; Pillow decodes without the interpreter's lock."""

    def decode(index: int) -> Pixels:
        try:
            return pixels(split.open(index), frame)
        except OSError as error:
            bad.append(f"{split.names[index]}: {error}")
            return np.zeros(frame.shape, np.uint8)

    shards, stored, image_bytes = list[dict[str, Any]](), 0, math.prod(frame.shape)
    with ThreadPoolExecutor(usable_threads()) as pool:
        while stored < len(split):
            count = max(1, shard_limit(stored * image_bytes, SHARD_BYTES) // image_bytes)
            end = min(stored + count, len(split))
            with _PixelFile(folder, name) as file:
                for start in range(stored, end, AT_ONCE):
                    part = np.stack(list(pool.map(decode, range(start, min(start + AT_ONCE, end)))))
                    file.write(part.tobytes())
                    if name == "train":
                        statistics.add(part)
                shards.append({**file.finish(), "images": end - stored})
            stored = end
    return shards


class _PixelFile:
    """A shard, without its name until it is complete."""

    def __init__(self, folder: Path, split: str) -> None:
        self._folder, self._split = folder, split
        self._scratch = folder / f".{split}.{os.getpid()}.tmp"
        self._file, self._hash = self._scratch.open("wb"), hashlib.sha256()

    def __enter__(self) -> _PixelFile:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        self._scratch.unlink(missing_ok=True)

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)

    def finish(self) -> dict[str, Any]:
        """Give the file its name; return its entry in the manifest."""
        size = self._file.tell()
        self._file.flush()
        os.fsync(self._file.fileno())
        name = f"{self._split}-{self._hash.hexdigest()[:12]}.pixels"
        self._scratch.replace(self._folder / name)
        return {"file": name, "bytes": size, "sha256": self._hash.hexdigest()}
