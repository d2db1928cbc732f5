"""What the container that prepares data gets to see, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.prepare import with_sources
from orchestrator.plan.prepare import Source, prepare_container
from orchestrator.specs.errors import UsageError
from orchestrator.specs.plan import Mount


def test_files_and_folders_among_the_words_are_brought_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "a b.csv").touch()
    monkeypatch.chdir(tmp_path)
    words = with_sources(["--images", "photos", "--csv=a b.csv", "--image-size", "64", "--grey", "demo"])
    assert words == [
        "--images", Source(path=str(tmp_path / "photos")), Source(path=str(tmp_path / "a b.csv"), option="--csv="),
        "--image-size", "64", "--grey", "demo",
    ]  # fmt: skip


def test_where_the_data_goes_is_said_elsewhere() -> None:
    for words in (["--data-dir", "x"], ["--data-dir=x"]):
        with pytest.raises(UsageError, match="orch prepare --data DIR"):
            with_sources(words)


def test_sources_are_read_only_under_their_own_names() -> None:
    photos = "/home/ana/photos"
    spec = prepare_container(
        image="sha256:1",
        workload="vision",
        words=[
            "--images",
            Source(path="/home/ana/photos"),
            Source(path="/home/ana/photos", option="--more="),
            "--grey",
        ],
        data_dir="/home/ana/Data",
        user="1000:1000",
        environment={},
    )
    inside = "/workspace/sources"
    assert spec.command == (
        "python", "-m", "trainer", "vision", "prepare", "--images", f"{inside}/1/photos", f"--more={inside}/2/photos",
        "--grey", "--data-dir", "/workspace/Data",
    )  # fmt: skip
    assert spec.mounts == (
        Mount(source="/home/ana/Data", target="/workspace/Data"),
        Mount(source=photos, target=f"{inside}/1/photos", read_only=True),
        Mount(source=photos, target=f"{inside}/2/photos", read_only=True),
    )
