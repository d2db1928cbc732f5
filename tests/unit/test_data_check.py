"""Copies of data are compared with what was sent, and damaged files are named with their offset."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from contract import data_check
from contract.data_check import BLOCK, Copy, decode_sums, encode_sums, flipped_byte
from orchestrator.fleet.runs.known_sums import SumsReader, names_in
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import data_probe

NAME = "0123456789abcdef"
LARGE = 2 * BLOCK + 777


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy with its sums, in a project's folder."""
    folder = tmp_path / "data" / NAME
    (folder / "sub").mkdir(parents=True)
    (folder / "large.bin").write_bytes(os.urandom(LARGE))
    (folder / "sub/small.txt").write_text("two\n")
    (folder / "empty").touch()
    sums = SumsReader().of_files(folder, names_in(folder))
    (folder.parent / data_check.SUMS).mkdir()
    (folder.parent / data_check.SUMS / NAME).write_text(encode_sums(sums))
    return folder


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 16
    file.write_bytes(content)


def deep(copy: Path) -> list[dict[str, object]]:
    """The answer of the program as a node runs it."""
    source = Path(data_check.__file__).read_text()
    project = str(copy.parents[1])
    ended = subprocess.run([sys.executable, "-c", source, "deep", project], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def compared(copy: Path) -> list[tuple[str, str, int, int]]:
    return [(str(one["file"]), str(one["wrong"]), int(str(one["offset"])), int(str(one["size"])))
            for one in deep(copy) if "file" in one]  # fmt: skip


def test_an_intact_copy_has_nothing_to_report(copy: Path) -> None:
    assert deep(copy) == [{"data": NAME, "files": 3, "bytes": LARGE + 4}]
    assert not list(copy.parent.glob(".sums/*.damaged"))


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 5, LARGE - 1])
def test_a_flipped_bit_is_named_with_its_byte(copy: Path, at: int) -> None:
    flip(copy / "large.bin", at)
    assert compared(copy) == [("large.bin", "content", at, 1)]
    assert list(json.loads((copy.parent / f".sums/{NAME}.damaged").read_text())) == ["large.bin"]


def test_other_damage_is_named_with_its_block(copy: Path) -> None:
    flip(copy / "large.bin", BLOCK + 1)
    flip(copy / "large.bin", BLOCK + 9)
    (copy / "sub/small.txt").write_text("two\nand more")
    (copy / "empty").unlink()
    os.mkfifo(copy / "empty")  # a reader of it would wait
    assert compared(copy) == [
        ("empty", "missing", 0, 0),
        ("large.bin", "content", BLOCK, BLOCK),
        ("sub/small.txt", "length", 4, 8),
    ]


def test_a_file_that_was_replaced_is_no_longer_listed(copy: Path) -> None:
    flip(copy / "sub/small.txt", 1)
    assert compared(copy)
    (copy / "sub/small.txt").write_text("two\n")
    assert compared(copy) == []
    assert not (copy.parent / f".sums/{NAME}.damaged").exists()


def test_without_sums_of_blocks_the_file_is_named(copy: Path) -> None:
    beside = copy.parent / data_check.SUMS / NAME
    beside.write_text(
        encode_sums({name: one._replace(blocks="") for name, one in decode_sums(beside.read_text()).items()})
    )
    flip(copy / "large.bin", 5)
    assert compared(copy) == [("large.bin", "content", 0, LARGE)]


def test_an_interrupted_comparison_continues_at_its_block(copy: Path) -> None:
    first, read = Copy(copy), list[int]()

    def took(amount: int) -> None:
        read.append(amount)
        if sum(read) > BLOCK + data_check.LEAST:
            first._save()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.compare(took)
    again, read_again = Copy(copy), list[int]()
    assert (again.file, again.block) == ("large.bin", 1)
    again.compare(read_again.append)
    assert read_again == [data_check.LEAST, BLOCK, 777, data_check.LEAST, 4]
    assert again.file == ""


def test_the_time_from_which_on_a_file_is_in_doubt(copy: Path) -> None:
    """The last comparison that found it intact began then; before the first one, it was copied then."""
    made = (copy.parent / data_check.SUMS / NAME).stat().st_mtime
    one = Copy(copy)
    assert one.before == made
    one.compare(lambda _bytes: None)
    began = one.began
    flip(copy / "large.bin", 3)
    one.compare(lambda _bytes: None)
    assert one.damaged["large.bin"][4] == began > made


def test_the_rate_is_an_upper_bound_and_yields_to_others(copy: Path) -> None:
    """A process that watches: it reports a bit that is flipped while it runs, and ends with its parent."""
    argv = [sys.executable, "-I", data_check.__file__, "watch", "4", str(copy)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        flip(copy / "sub/small.txt", 0)  # the large file, 2 MiB at 4 MiB/s, comes first
        values = json.loads(process.stdout.readline())
        assert (values["data"], values["file"], values["offset"]) == (NAME, "sub/small.txt", 0)
        policy = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[38]
        assert int(policy) == os.SCHED_IDLE
        process.kill()


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"large.bin": 1, "sub/small.txt": ["x", "content", 0, 1, 2.0]},
        {"large.bin": ["large.bin", "content", [], 1, 2]},
    ],
)
def test_a_later_start_reports_again_what_was_not_replaced(copy: Path, strange: dict[str, object]) -> None:
    """The agents restart so. A run may have written anything into the list."""
    flip(copy / "sub/small.txt", 0)
    assert compared(copy) == [("sub/small.txt", "content", 0, 1)]
    beside = copy.parent / f".sums/{NAME}.damaged"
    known = json.loads(beside.read_text())
    beside.write_text(json.dumps(strange | known))
    argv = [sys.executable, "-I", data_check.__file__, "watch", "100", str(copy)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        values = json.loads(process.stdout.readline())
        assert list(values.values()) == [NAME, *known["sub/small.txt"]]
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(
    "files",
    [
        {"../x": [1, "a" * 64, ""]},
        {"/etc/passwd": [1, "a" * 64, ""]},
        {"a": [-1, "a" * 64, ""]},
        {"a": [1, "a" * 63, ""]},
        {"a": [1, "a" * 64, "12"]},
        {"a": [True, "a" * 64, ""]},
        {"a": 1},
        [],
    ],
)
def test_strange_sums_are_refused(files: object) -> None:
    content = json.dumps(files)
    with pytest.raises(ValueError, match=r"none|folder|no sums"):
        decode_sums(f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}")


def test_sums_that_were_damaged_themselves_are_refused_and_data_without_sums_is_named(copy: Path) -> None:
    beside = copy.parent / data_check.SUMS / NAME
    flip(beside, 90)
    with pytest.raises(ValueError, match="damaged themselves"):
        decode_sums(beside.read_text())
    assert data_probe.ask(LocalNode(name="here"), str(copy.parents[1])).unchecked == (NAME,)


def test_nothing_is_written_through_a_link(copy: Path, tmp_path: Path) -> None:
    (copy.parent / ".sums").rename(tmp_path / "elsewhere")
    (copy.parent / ".sums").symlink_to(tmp_path / "elsewhere")
    source = Path(data_check.__file__).read_text()
    ended = subprocess.run([sys.executable, "-c", source, "deep", str(tmp_path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert [one.name for one in (tmp_path / "elsewhere").iterdir()] == [NAME]


def test_the_position_of_a_flipped_bit_follows_from_two_sums() -> None:
    content = bytearray(os.urandom(3000))
    whole = zlib.crc32(content)
    for at in (0, 1, 1499, 2999):
        for bit in range(8):
            content[at] ^= 1 << bit
            assert flipped_byte(whole, zlib.crc32(content), len(content)) == at
            content[at] ^= 1 << bit


def test_an_answer_of_a_hostile_node_is_data() -> None:
    strange = [{"data": "../x", "file": "a"}, {"data": 1}, {"data": NAME, "bytes": "x"}]
    lines = [json.dumps(one) for one in strange] + ["[" * 100_000, "x"]
    lines.append(json.dumps({"data": NAME, "file": 7, "offset": "9" * 400}))
    found = data_probe.parse("\n".join(lines))
    assert [(one.file, one.offset) for one in found.damaged] == [("7", 0)]
