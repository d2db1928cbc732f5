"""Folders of images to pixels: nothing silently left out, nothing half written, nothing read twice."""

from __future__ import annotations

import gzip
import multiprocessing
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer.data import image_cache, image_store, images
from trainer.data.augment import Augmentation
from trainer.data.debian import Apt
from trainer.data.images import Frame, from_folder
from trainer.data.order import Shuffled, uniform
from trainer.errors import ConfigurationError

FRAME = Frame(stored=20, crop=16, channels=3)


def test_classes_are_folders_and_every_class_is_held_back_from(picture_folder: Path) -> None:
    gallery = from_folder(picture_folder, 0.25)
    assert gallery.classes == ("leaning", "lying", "standing")
    assert {name: np.bincount(split.labels).tolist() for name, split in gallery.splits.items()} == {
        "train": [9, 9, 9],
        "validation": [3, 3, 3],
    }
    assert not set(gallery.splits["train"].names) & set(gallery.splits["validation"].names)


def test_the_split_depends_on_names_alone(picture_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(picture_folder, copy)
    here, there = from_folder(picture_folder), from_folder(copy)
    assert here.splits["validation"].names == there.splits["validation"].names
    assert here.content == there.content
    (copy / "lying" / "another.png").write_bytes((copy / "lying" / "00.png").read_bytes())
    before = set(there.splits["train"].names)
    assert before <= set(from_folder(copy).splits["train"].names) | {*from_folder(copy).splits["validation"].names}
    assert from_folder(copy).content != here.content


def test_folders_train_and_val_are_taken_as_they_are(picture_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(picture_folder, tmp_path / "train")
    (tmp_path / "val" / "lying").mkdir(parents=True)
    shutil.copy(picture_folder / "lying" / "03.png", tmp_path / "val" / "lying" / "a.png")
    gallery = from_folder(tmp_path)
    assert len(gallery.splits["train"]) == 36
    assert gallery.splits["validation"].names == ("val/lying/a.png",)
    assert gallery.splits["validation"].labels.tolist() == [1]
    (tmp_path / "val" / "strange").mkdir()
    shutil.copy(picture_folder / "lying" / "03.png", tmp_path / "val" / "strange" / "a.png")
    with pytest.raises(ConfigurationError, match="strange"):
        from_folder(tmp_path)


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_what_is_no_folder_of_classes_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="class"):
        from_folder(tmp_path / folder)


def test_all_bad_images_are_named_at_once(picture_folder: Path, tmp_path: Path) -> None:
    folder, data = tmp_path / "pictures", tmp_path / "Data"
    shutil.copytree(picture_folder, folder)
    image_store.prepare(from_folder(folder), data, FRAME)
    before = sorted(data.iterdir())
    whole = (folder / "lying" / "00.png").read_bytes()
    (folder / "lying" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "standing" / "words.jpg").write_text("no picture")
    (folder / "standing" / "empty.png").touch()
    with pytest.raises(ConfigurationError) as caught:
        image_store.prepare(from_folder(folder), data, FRAME)
    assert all(name in str(caught.value) for name in ("cut.png", "words.jpg", "empty.png", "3 of 39 files"))
    assert sorted(data.iterdir()) == before  # what was prepared earlier stays usable
    image_store.PreparedImages.open(data)


def test_prepare_is_idempotent_and_repairs(picture_folder: Path, tmp_path: Path) -> None:
    gallery = from_folder(picture_folder)
    first, new = image_store.prepare(gallery, tmp_path, FRAME)
    assert new
    again, new = image_store.prepare(gallery, tmp_path, FRAME)
    assert not new
    assert again.manifest == first.manifest
    pixels = next(tmp_path.glob("train-*.pixels"))
    content = pixels.read_bytes()
    pixels.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert image_store.prepare(gallery, tmp_path, FRAME)[1]
    assert pixels.read_bytes() == content
    pixels.write_bytes(content[1:])
    with pytest.raises(ConfigurationError, match="expected"):
        image_store.PreparedImages.open(tmp_path)
    other, new = image_store.prepare(gallery, tmp_path, Frame(stored=18, crop=16, channels=1))
    assert new
    assert other.content != first.content
    assert len(list(tmp_path.iterdir())) == 5  # nothing of the earlier ones is left


def test_pixels_are_the_middle_square_scaled_and_measured(picture_folder: Path, tmp_path: Path) -> None:
    gallery = from_folder(picture_folder)
    data, _ = image_store.prepare(gallery, tmp_path, Frame(stored=40, crop=32, channels=3))
    stored = image_store.StoredImages(data, "train")
    with Image.open(picture_folder.parent / picture_folder.name / gallery.splits["train"].names[5]) as picture:
        assert np.array_equal(stored[5], np.asarray(picture)[:, 6:46])
    whole = np.stack([stored[i] for i in range(len(stored))]) / 255
    assert data.manifest["mean"] == pytest.approx(whole.mean((0, 1, 2)), abs=1e-4)
    assert data.manifest["std"] == pytest.approx(whole.std((0, 1, 2)), abs=1e-4)


def test_maps_travel_as_names(picture_folder: Path, tmp_path: Path) -> None:
    data, _ = image_store.prepare(from_folder(picture_folder), tmp_path, FRAME)
    stored = image_store.StoredImages(data, "train")
    packed = pickle.dumps(stored)
    assert len(packed) < 3000 < sum(shard.nbytes for shard in stored._shards)
    assert np.array_equal(pickle.loads(packed)[7], stored[7])  # noqa: S301  # our own bytes


class Counting(images.FileReader):
    """Reads files, and says which."""

    read: list[int]

    def __call__(self, index: int) -> Image.Image:
        self.read.append(index)
        return super().__call__(index)


def cached(folder: Path, budget: int) -> tuple[image_cache.CachedImages, list[int]]:
    split = from_folder(folder).splits["train"]
    assert isinstance(split.open, images.FileReader)
    counting = Counting(split.open.files)
    object.__setattr__(counting, "read", [])
    counted = images.Split(names=split.names, labels=split.labels, open=counting)
    return image_cache.CachedImages(counted, FRAME, budget), counting.read


def epoch(pictures: image_cache.CachedImages, number: int, crop_scale: float = 1.0) -> np.ndarray:
    """All views of one epoch, by sample."""
    count = len(pictures)
    positions = np.arange(count * number, count * (number + 1))
    indices = Shuffled(count, 1).take(count * number, count)
    augmentation = Augmentation(crop=FRAME.crop, crop_scale=crop_scale)
    views = augmentation.views(pictures, indices, uniform(1, positions, augmentation.columns))
    return views[np.argsort(indices)]


@pytest.mark.parametrize("crop_scale", [1.0, 0.08])
def test_the_second_epoch_reads_no_file_and_differs(picture_folder: Path, crop_scale: float) -> None:
    pictures, read = cached(picture_folder, image_cache.MIB)
    first = epoch(pictures, 0, crop_scale)
    assert sorted(set(read)) == list(range(len(pictures)))
    read.clear()
    second = epoch(pictures, 1, crop_scale)
    assert read == []
    same = (first == second).all((1, 2, 3))
    assert same.mean() < 0.2  # 25 corners and a mirror: some fall alike, by chance


def test_without_a_cache_every_epoch_decodes(picture_folder: Path) -> None:
    pictures, read = cached(picture_folder, 0)
    first = epoch(pictures, 0)
    count = len(read)
    epoch(pictures, 1)
    assert len(read) == 2 * count
    assert np.array_equal(first, epoch(cached(picture_folder, image_cache.MIB)[0], 0))


def test_the_budget_is_not_exceeded(picture_folder: Path) -> None:
    pictures, read = cached(picture_folder, 5 * 1201)
    assert (pictures.in_memory, pictures.bytes) == (5, 5 * 1201)
    epoch(pictures, 0)
    read.clear()
    epoch(pictures, 1)
    assert sorted(set(read)) == list(range(5, len(pictures)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_fill_one_cache(method: str, picture_folder: Path) -> None:
    if method == "fork" and sys.version_info >= (3, 12):
        pytest.skip("Python warns of fork in a process with threads")
    pictures = image_cache.CachedImages(from_folder(picture_folder).splits["train"], FRAME, image_cache.MIB)
    worker = multiprocessing.get_context(method).Process(target=pictures.__getitem__, args=(3,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert np.flatnonzero(pictures._there).tolist() == [3]
    assert pictures._pixels[3].any()


def test_a_bad_image_names_itself_while_training(tmp_path: Path, picture_folder: Path) -> None:
    shutil.copytree(picture_folder, tmp_path / "p")
    for file in (tmp_path / "p").rglob("*.png"):
        file.write_text("no picture")
    pictures = image_cache.CachedImages(from_folder(tmp_path / "p").splits["train"], FRAME, 0)
    with pytest.raises(ConfigurationError, match=r"leaning/\d\d.png"):
        pictures[0]


def fashion_tree(root: Path) -> Path:
    folder = root / "usr/share/datasets/fashion-mnist"
    folder.mkdir(parents=True)
    for stem, count in (("train", 4), ("t10k", 2)):
        pixels = np.arange(count * 784, dtype=np.int64).astype(np.uint8).tobytes()
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels))
        labels = struct.pack(">II", 0x801, count) + bytes(range(count))
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return folder


FAKE_APT = """
import shutil, sys
if "download" in sys.argv:
    assert sys.argv[-1] == "dataset-fashion-mnist"
    shutil.copy("@DEB@", ".")
"""


def test_fashion_mnist_comes_from_debian(tmp_path: Path) -> None:
    fashion_tree(tmp_path / "tree")
    (tmp_path / "tree" / "DEBIAN").mkdir()
    (tmp_path / "tree" / "DEBIAN/control").write_text(
        "Package: dataset-fashion-mnist\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
    )
    subprocess.run(("dpkg-deb", "--build", tmp_path / "tree", tmp_path / "f.deb"), check=True, capture_output=True)
    script = tmp_path / "apt.py"
    script.write_text(FAKE_APT.replace("@DEB@", str(tmp_path / "f.deb")))
    apt = Apt(home=tmp_path / "apt", command=(sys.executable, str(script)))
    gallery = images.fashion_mnist(lambda line: None, apt)
    assert {name: split.labels.tolist() for name, split in gallery.splits.items()} == {
        "train": [0, 1, 2, 3],
        "validation": [0, 1],
    }
    second = images.pixels(gallery.splits["train"].open(1), Frame(stored=28, crop=28, channels=1))
    assert second.flatten().tolist() == [number % 256 for number in range(784, 2 * 784)]


def test_without_the_package_the_way_out_is_reported(tmp_path: Path) -> None:
    apt = Apt(home=tmp_path / "apt", command=(str(tmp_path / "no-apt-here"),))
    with pytest.raises(ConfigurationError, match="--images FOLDER"):
        images.fashion_mnist(lambda line: None, apt)
