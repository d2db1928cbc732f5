"""Data that nodes get once, by its content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.upload import upload_data
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import CommandFailedError, ConfigError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "Data/sub").mkdir(parents=True)
    (tmp_path / "Data/sub/tokens.bin").write_bytes(b"\0\1" * 1000)
    (tmp_path / "Data/manifest.json").write_text("{}")
    return tmp_path / "Data"


class Watched(LocalNode):
    """This computer; something else happens there when a copy has arrived and is not named yet."""

    def __init__(self, then: Callable[[Path], object]) -> None:
        super().__init__("alpha")
        self.then = then

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        super().put(source, target, only=only)
        self.then(Path(target))


def test_content_and_names_decide(data: Path) -> None:
    digest = folder_digest(data)
    assert len(digest) == 16
    os.utime(data / "manifest.json", (1, 1))
    assert folder_digest(data) == digest
    (data / "manifest.json").write_text("{ }")
    assert folder_digest(data) != digest
    (data / "manifest.json").write_text("{}")
    assert folder_digest(data) == digest
    (data / "manifest.json").rename(data / "other.json")
    assert folder_digest(data) != digest


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing is not a folder"):
        folder_digest(tmp_path / "missing")


def test_a_copy_has_a_folder_of_its_run_until_it_is_complete(tmp_path: Path, data: Path) -> None:
    target, seen = tmp_path / "disk/0123", list[str]()
    node = Watched(lambda aside: seen.extend(path.name for path in aside.parent.iterdir()))
    upload_data(node, data, str(target), run_id="r1")
    assert seen == ["0123.r1.partial"]
    assert [path.name for path in target.parent.iterdir()] == ["0123"]
    assert folder_digest(target) == folder_digest(data)


def test_two_launches_of_the_same_data_leave_each_other_alone(tmp_path: Path, data: Path) -> None:
    """One begins while the other has half of it, and both end with the same complete folder."""
    target, alpha = tmp_path / "disk/0123", LocalNode("alpha")
    half = tmp_path / "disk/0123.r1.partial"
    half.mkdir(parents=True)
    (half / "manifest.json").write_text("{}")
    upload_data(alpha, data, str(target), run_id="r2")
    assert (half / "manifest.json").is_file()
    assert folder_digest(target) == folder_digest(data)
    upload_data(alpha, data, str(target), run_id="r1")
    assert [path.name for path in target.parent.iterdir()] == ["0123"]


def test_the_copy_that_has_the_name_is_used_and_the_own_one_removed(tmp_path: Path, data: Path) -> None:
    """The same holds where its folders are read-only, as those that were copied."""
    target = tmp_path / "disk/0123"
    (data / "sub").chmod(0o555)

    def other_is_first(_aside: Path) -> None:
        shutil.copytree(data, target)
        (target / "sub/tokens.bin").chmod(0o444)

    upload_data(Watched(other_is_first), data, str(target), run_id="r1")
    assert [path.name for path in target.parent.iterdir()] == ["0123"]
    assert not (target / "sub/tokens.bin").stat().st_mode & 0o222


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_copy_of_ours_is_an_error_and_nothing_half_done_stays(tmp_path: Path, data: Path, kind: str) -> None:
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    if kind == "file":
        (disk / "0123").write_text("mine")
    else:
        (disk / "0123").symlink_to(elsewhere)
    with pytest.raises(CommandFailedError, match=r"alpha: finishing .*0123 failed"):
        upload_data(LocalNode("alpha"), data, str(disk / "0123"), run_id="r1")
    assert [path.name for path in disk.iterdir()] == ["0123"]
    assert not any(elsewhere.iterdir())
