"""Temporary folders of agents: removed with their owner, or by the next agent where it was killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from trainer.agent.scratch_folder import PREFIX, YOUNG_S, ScratchFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    (folder / "0").write_text("a heartbeat")
    then = folder.stat().st_mtime - YOUNG_S - 1
    os.utime(folder, (then, then))
    return folder


def test_the_next_agent_removes_what_a_killed_one_left_behind(temporary: Path) -> None:
    left = temporary / f"{PREFIX}killed"
    left.mkdir()
    aged(left)
    foreign = temporary / "other"
    foreign.mkdir()
    aged(foreign)
    folder = ScratchFolder()
    assert {*temporary.iterdir()} == {folder.path, foreign}
    folder.remove()
    folder.remove()  # a second signal may end the ranks while they are ended
    assert [*temporary.iterdir()] == [foreign]


def test_a_folder_in_use_or_just_made_stays(temporary: Path) -> None:
    used = ScratchFolder()
    aged(used.path)
    just_made = temporary / f"{PREFIX}new"
    just_made.mkdir()
    ScratchFolder().remove()
    assert {*temporary.iterdir()} == {used.path, just_made}
    used.remove()
