"""Data that has not changed is not read again."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from orchestrator.fleet.runs.known_sums import SumsReader, data_digest, folder_digest, names_in

LATER_NS = 4 * 10**18
"""A time at which every change of these tests is long past."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "Data/sub").mkdir(parents=True)
    (tmp_path / "Data/a.bin").write_bytes(b"a" * 1000)
    (tmp_path / "Data/sub/b.bin").write_bytes(b"b" * 2000)
    return tmp_path / "Data"


def read(data: Path, now_ns: int = LATER_NS) -> tuple[int, dict[str, str]]:
    """Bytes that were read, and the sums."""
    reader = SumsReader(now_ns=lambda: now_ns)
    sums = reader.sums(data, names_in(data))
    return reader.read, sums


def test_only_what_has_changed_is_read_again(data: Path) -> None:
    first = read(data)
    assert first[0] == 3000
    assert read(data) == (0, first[1])
    (data / "a.bin").write_bytes(b"c" * 1001)
    second = read(data)
    assert second[0] == 1001
    assert second[1]["a.bin"] != first[1]["a.bin"]
    assert data_digest(data) == folder_digest(data)


def test_a_change_that_restores_size_and_modification_time_is_noticed(data: Path) -> None:
    before, file = read(data)[1], data / "a.bin"
    times = file.stat()
    while file.stat().st_ctime_ns == times.st_ctime_ns:  # until the clock of the file system has ticked
        file.write_bytes(b"x" * 1000)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read(data)[1] != before


def test_a_file_written_just_now_is_read_again(data: Path) -> None:
    now_ns = (data / "a.bin").stat().st_mtime_ns
    assert [read(data, now_ns)[0] for _ in range(2)] == [3000, 3000]


def test_removed_and_renamed_files(data: Path) -> None:
    read(data)
    (data / "a.bin").unlink()
    assert read(data)[0] == 0
    (data / "sub/b.bin").rename(data / "c.bin")
    assert read(data)[1].keys() == {"c.bin"}
    assert data_digest(data) == folder_digest(data)


def test_an_interrupted_reading_is_continued(data: Path) -> None:
    reader = SumsReader(now_ns=lambda: LATER_NS)
    (data / "sub/b.bin").chmod(0)
    if os.access(data / "sub/b.bin", os.R_OK):  # root reads it all the same
        (data / "sub/b.bin").unlink()
        (data / "sub/b.bin").mkdir()
    with pytest.raises(OSError, match=r"b\.bin"):
        reader.sums(data, ["a.bin", "sub/b.bin"])
    again = SumsReader(now_ns=lambda: LATER_NS)
    again.sums(data, ["a.bin"])
    assert again.read == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a.bin": 1}', '{"a.bin": [1,2,3,4,5,"z"]}', "[" * 100_000])
def test_sums_that_cannot_be_read_cost_one_reading(data: Path, content: str) -> None:
    sums = read(data)[1]
    state = Path(os.environ["XDG_STATE_HOME"]) / "orch/sums"
    for file in state.iterdir():
        file.write_text(content)
    assert read(data) == (3000, sums)
    assert read(data)[0] == 0


def test_progress_with_the_time_left(data: Path) -> None:
    messages, clock = list[str](), itertools.count(0, 60)
    SumsReader(notify=messages.append, monotonic=lambda: next(clock)).sums(data, names_in(data))
    assert len(messages) == 2
    assert "2 min left" in messages[0]
    assert "0 min left" in messages[1]
