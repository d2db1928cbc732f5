"""Data that nodes get once, by its content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.fleet.runs.artifacts import folder_digest, upload_data
from orchestrator.nodes.fake import FakeNode
from orchestrator.specs.errors import CommandFailedError, ConfigError

TARGET = "/data/0123"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "Data/sub").mkdir(parents=True)
    (tmp_path / "Data/sub/tokens.bin").write_bytes(b"\0\1" * 1000)
    (tmp_path / "Data/manifest.json").write_text("{}")
    return tmp_path / "Data"


def node(tmp_path: Path, *, moved: bool = True) -> FakeNode:
    answers = {("rm", "*"): (0, "", ""), ("mv", "*"): (1 - moved, "", "disk full")}
    return FakeNode("alpha", root=tmp_path / "disk", answers={**answers})


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


def test_copied_aside_then_renamed(tmp_path: Path, data: Path) -> None:
    alpha = node(tmp_path)
    upload_data(alpha, data, TARGET)
    assert (tmp_path / "disk/data/0123.partial/sub/tokens.bin").read_bytes() == b"\0\1" * 1000
    assert alpha.calls == [
        ("rm", "-rf", f"{TARGET}.partial"),
        ("mv", "-T", f"{TARGET}.partial", TARGET),
    ]


def test_a_copy_that_cannot_be_finished_is_an_error(tmp_path: Path, data: Path) -> None:
    with pytest.raises(CommandFailedError, match=r"alpha: finishing /data/0123 failed.*disk full"):
        upload_data(node(tmp_path, moved=False), data, TARGET)
