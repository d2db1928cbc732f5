"""Prepared images: uint8 in memory-mapped files, and a manifest that says what they are.

Decoded and scaled once, so that training reads pixels at the speed of the page cache. Nothing of chance is applied
yet: each epoch crops anew. Files carry their content's hash in their name and the manifest is replaced last: a folder
is never half new.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.files import sha256, sync_folder, write_atomic
from trainer.data.images import Frame, Gallery, Pixels, Split, pixels
from trainer.data.order import Indices
from trainer.engine.limits import usable_threads
from trainer.errors import ConfigurationError

MANIFEST = "manifest.json"
FORMAT = 1
KIND = "images"
AT_ONCE = 1024
"""Images in memory while preparing: it does not grow with their number."""
PREPARE = "python -m trainer vision prepare --images FOLDER|fashion-mnist --data-dir"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A folder of prepared images, as its manifest tells it."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.manifest["classes"])

    @property
    def content(self) -> str:
        """The hash of all hashes."""
        return hashlib.sha256("".join(str(entry["sha256"]) for entry in self.files()).encode()).hexdigest()

    @property
    def frame(self) -> Frame:
        return Frame(**self.manifest["frame"])

    def files(self) -> list[Mapping[str, Any]]:
        return [split[part] for split in self.manifest["splits"].values() for part in ("pixels", "labels")]


class StoredImages:
    """One split, mapped into memory: every process on the machine shares the same pages."""

    def __init__(self, prepared: Prepared, split: str) -> None:
        entry = prepared.manifest["splits"][split]
        self.labels: Indices = np.fromfile(prepared.folder / entry["labels"]["file"], "<i8").astype(np.int64)
        self._file = prepared.folder / entry["pixels"]["file"]
        self._shape = (len(self.labels), *prepared.frame.shape)
        self._pixels = self._map()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pixels:
        picture: Pixels = self._pixels[index]
        return picture

    def __getstate__(self) -> dict[str, Any]:
        """A map travels to a worker process as its file's name, not as gigabytes."""
        return {name: value for name, value in vars(self).items() if name != "_pixels"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._pixels = self._map()

    def _map(self) -> NDArray[np.uint8]:
        if not len(self):
            return np.empty(self._shape, np.uint8)
        return np.memmap(self._file, np.uint8, "r", shape=self._shape)


def prepare(gallery: Gallery, folder: Path, frame: Frame) -> tuple[Prepared, bool]:
    """(data, True) if the folder was made anew from the gallery; (data, False) if it holds just that already."""
    fingerprint = hashlib.sha256(f"{FORMAT} {frame} {gallery.content} {gallery.classes}".encode()).hexdigest()
    if (folder / MANIFEST).exists():
        try:
            there = open_prepared(folder)
            if there.manifest["input_sha256"] == fingerprint and is_sound(there):
                return there, False
        except ConfigurationError:
            pass  # what is there is broken, or something else: it is made anew
    folder.mkdir(parents=True, exist_ok=True)
    bad: list[str] = []
    statistics = Statistics(frame.channels)
    splits = {}
    for name, split in gallery.splits.items():
        entry = _store_pixels(folder, name, _decoded(split, frame, bad), statistics)
        splits[name] = {"images": len(split), "pixels": entry, "labels": _store_labels(folder, name, split.labels)}
    if bad:
        _remove_all_but(folder, _named_before(folder))
        raise ConfigurationError(
            "\n".join(sorted(bad)) + f"\n{len(bad)} of {sum(map(len, gallery.splits.values()))} files are no images:"
            " mend them or take them out of the folder"
        )
    manifest = {
        "format": FORMAT, "kind": KIND, "input_sha256": fingerprint, "classes": list(gallery.classes),
        "frame": asdict(frame), "mean": statistics.mean(), "std": statistics.std(), "splits": splits,
    }  # fmt: skip
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    prepared = Prepared(folder=folder, manifest=manifest)
    _remove_all_but(folder, {str(entry["file"]) for entry in prepared.files()})
    return prepared, True


def open_prepared(folder: Path) -> Prepared:
    """Read the manifest and see that every file is there in full length (not every bit: see `is_sound`)."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
        if manifest.get("kind") != KIND or manifest["format"] != FORMAT:
            raise ConfigurationError(f"{path}: no images of this trainer's format; prepare them:\n  {PREPARE} {folder}")
        prepared = Prepared(folder=folder, manifest=manifest)
        wrong = [
            f"{file}: expected {entry['bytes']} bytes, found {file.stat().st_size if file.exists() else 'no file'}"
            for entry in prepared.files()
            if not (file := folder / str(entry["file"])).exists() or file.stat().st_size != entry["bytes"]
        ]
    except FileNotFoundError:
        raise ConfigurationError(f"{folder}: no prepared images; make them:\n  {PREPARE} {folder}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error!r}); prepare anew:\n  {PREPARE} {folder}") from None
    if wrong:
        raise ConfigurationError("\n".join([*wrong, f"prepare anew:\n  {PREPARE} {folder}"]))
    return prepared


def is_sound(prepared: Prepared) -> bool:
    """Does every file still have the content that its hash names?"""
    return all(sha256(prepared.folder / str(entry["file"])) == entry["sha256"] for entry in prepared.files())


class Statistics:
    """Mean and deviation per channel, gathered as the pixels go by."""

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._sum = np.zeros(channels)
        self._squares = np.zeros(channels)

    def add(self, images: NDArray[np.uint8]) -> None:
        values = images.reshape(-1, images.shape[-1]).astype(np.float64) / 255
        self._count += len(values)
        self._sum += values.sum(0)
        self._squares += (values**2).sum(0)

    def mean(self) -> list[float]:
        return [round(float(value), 4) for value in self._sum / max(1, self._count)]

    def std(self) -> list[float]:
        variance = self._squares / max(1, self._count) - (self._sum / max(1, self._count)) ** 2
        # Images all of one colour have none; 1 in its place leaves them as they are.
        return [round(float(value), 4) or 1.0 for value in np.sqrt(np.maximum(variance, 0))]


def _decoded(split: Split, frame: Frame, bad: list[str]) -> Iterator[NDArray[np.uint8]]:
    """The split's images in order, some at a time; Pillow decodes without the interpreter's lock."""

    def decode(index: int) -> Pixels:
        try:
            return pixels(split.open(index), frame)
        except OSError as error:
            bad.append(f"{split.names[index]}: {error}")
            return np.zeros(frame.shape, np.uint8)

    with ThreadPoolExecutor(usable_threads()) as pool:
        for start in range(0, len(split), AT_ONCE):
            yield np.stack(list(pool.map(decode, range(start, min(start + AT_ONCE, len(split))))))


def _store_pixels(
    folder: Path, split: str, parts: Iterator[NDArray[np.uint8]], statistics: Statistics
) -> dict[str, Any]:
    digest, scratch = hashlib.sha256(), folder / f".{split}.{os.getpid()}.tmp"
    try:
        with scratch.open("wb") as file:
            for part in parts:
                content = part.tobytes()
                file.write(content)
                digest.update(content)
                if split == "train":
                    statistics.add(part)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        name = f"{split}-{digest.hexdigest()[:12]}.pixels"
        scratch.replace(folder / name)
    finally:
        scratch.unlink(missing_ok=True)
    return {"file": name, "bytes": size, "sha256": digest.hexdigest()}


def _store_labels(folder: Path, split: str, labels: Indices) -> dict[str, Any]:
    content = labels.astype("<i8").tobytes()
    digest = hashlib.sha256(content).hexdigest()
    name = f"{split}-{digest[:12]}.labels"
    write_atomic(folder / name, content)
    return {"file": name, "bytes": len(content), "sha256": digest}


def _named_before(folder: Path) -> set[str]:
    try:
        return {str(entry["file"]) for entry in open_prepared(folder).files()}
    except ConfigurationError:
        return set()


def _remove_all_but(folder: Path, kept: set[str]) -> None:
    """Files of an earlier preparation, or of one that failed; only names that we write ourselves."""
    for pattern in ("train-*.pixels", "train-*.labels", "validation-*.pixels", "validation-*.labels"):
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink()
    sync_folder(folder)
