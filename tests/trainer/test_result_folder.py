"""The folder of a run as a place of result files, and the stream between two nodes: hostile names, links, lies."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contract.result_files import ResultFile
from contract.run_folder import COPIED
from tests.each_case import failures_of
from trainer.agent.file_stream import CHUNK, Received, receive_files, send_files
from trainer.agent.result_folder import RefusedFileError, ResultFolder

AT_US = 1_700_000_000_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made(tmp_path / "alpha")


def made(folder: Path) -> Path:
    """A run's folder with its code, which is listed as launched."""
    (folder / "code" / "out").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print(7)")
    (folder / "code" / "last.pt").write_bytes(b"PK\x03\x04 of the launch")
    (folder / "code-ab.list").write_text("./train.py\0./last.pt\0")
    return folder


def paths(folder: Path) -> list[str]:
    return sorted(file.path for file in ResultFolder(folder).listed().files)


def file(path: str, content: bytes) -> ResultFile:
    return ResultFile(path=path, size=len(content), modified_us=AT_US)


def content_of(folder: Path) -> dict[str, bytes]:
    """All files below, links as such."""
    return {
        str(path.relative_to(folder)): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir() and path.name != COPIED
    }


def test_what_ranks_wrote_is_listed_and_nothing_else(run: Path) -> None:
    code = run / "code"
    (code / "out" / "last.pt").write_bytes(b"PK\x03\x04")
    (run / "own.json").write_text("{}")
    for name in ("json.py", "run.sh", ".hidden", "x.so", "x.pth"):
        (code / name).write_text("import os")
    (code / "tool").write_text("#!/bin/sh")
    (code / "executable").write_text("x")
    (code / "executable").chmod(0o755)
    (code / "link.pt").symlink_to("/etc/passwd")
    (code / "linked").symlink_to("/etc")
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "data.json").write_text("{}")
    os.mkfifo(code / "pipe")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.pt").write_bytes(b"x")
    assert paths(run) == ["code/out/last.pt", "own.json"]
    os.utime(code / "last.pt", (2e9, 2e9))
    (changed,) = (one for one in ResultFolder(run).listed().files if one.path == "code/last.pt")
    assert changed.launched
    assert changed.sha256 == hashlib.sha256(b"PK\x03\x04 of the launch").hexdigest()


class Stream:
    """Two ends of a connection, one of which a thread serves."""

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self.here, there = socket.socketpair()
        self._there = there
        self._thread = threading.Thread(target=self._run, args=(serve,))
        self._thread.start()

    def _run(self, serve: Callable[[socket.socket], object]) -> None:
        with self._there:
            serve(self._there)

    def __enter__(self) -> socket.socket:
        return self.here

    def __exit__(self, *_error: object) -> None:
        self.here.close()
        self._thread.join()


def copied(source: Path, target: Path, files: Sequence[ResultFile], *moved: Callable[[], None]) -> Received:
    """`moved`: called after each piece, on both sides."""
    with Stream(lambda there: send_files(there, ResultFolder(source), [one.path for one in files], *moved)) as here:
        return receive_files(here, ResultFolder(target), files, *moved)


def test_files_are_copied_with_their_times(run: Path, tmp_path: Path) -> None:
    target, big = made(tmp_path / "beta"), os.urandom(3_000_000)
    (run / "code" / "out" / "deep").mkdir()
    (run / "code" / "out" / "deep" / "big.bin").write_bytes(big)
    (run / "code" / "out" / "empty.txt").touch()
    files = ResultFolder(run).listed().files
    received = copied(run, target, files)
    assert (received.files, received.bytes, received.problem) == (2, len(big), "")
    assert (target / "code/out/deep/big.bin").read_bytes() == big
    assert (target / "code/out/deep/big.bin").stat().st_mode & 0o111 == 0
    there = {one.path: one for one in ResultFolder(target).listed().files}
    assert there == {one.path: replace(one, copied=True) for one in files}
    assert not (target / ".copying").exists()


def test_both_sides_note_that_bytes_arrive(run: Path, tmp_path: Path) -> None:
    """A copy is waited for as long as it moves, on however slow a link."""
    (run / "code" / "out" / "big.bin").write_bytes(os.urandom(10 * CHUNK))
    pieces = list[str]()
    copied(
        run,
        made(tmp_path / "beta"),
        ResultFolder(run).listed().files,
        lambda: pieces.append(threading.current_thread().name),
    )
    assert len(set(pieces)) == 2
    assert all(pieces.count(side) >= 10 for side in set(pieces))


def test_a_copy_is_replaced_and_a_file_that_was_written_here_is_not(run: Path, tmp_path: Path) -> None:
    target, last = made(tmp_path / "beta"), run / "code" / "out" / "last.pt"
    for content in (b"PK\x03\x04 one", b"PK\x03\x04 another"):
        last.write_bytes(content)
        assert copied(run, target, ResultFolder(run).listed().files).problem == ""
        assert (target / "code/out/last.pt").read_bytes() == content
    (target / "code/out/last.pt").write_bytes(b"PK\x03\x04 own")
    last.write_bytes(b"PK\x03\x04 newest")
    received = copied(run, target, ResultFolder(run).listed().files)
    assert "a file that was written here has its name" in received.problem
    assert (target / "code/out/last.pt").read_bytes() == b"PK\x03\x04 own"


def sent(path: str, content: bytes, *, size: int | None = None, sha256: str | None = None) -> bytes:
    header = {"path": path, "size": len(content) if size is None else size}
    digest = hashlib.sha256(content).hexdigest() if sha256 is None else sha256
    return json.dumps(header).encode() + b"\n" + content + json.dumps({"sha256": digest}).encode() + b"\n"


def test_a_hostile_source_changes_nothing_here(tmp_path: Path) -> None:
    target = made(tmp_path / "beta")
    (tmp_path / "elsewhere").mkdir()
    (target / "code" / "linked").symlink_to(tmp_path / "elsewhere")
    (target / "code" / "dangling.pt").symlink_to(tmp_path / "elsewhere" / "made.pt")
    before = content_of(tmp_path)
    good = b"PK\x03\x04 altered"

    def changes_nothing(wanted: str, answer: bytes) -> None:
        with Stream(lambda there: there.sendall(answer)) as here:
            received = receive_files(here, ResultFolder(target), [file(wanted, good)])
        assert received.files == 0
        assert received.problem
        assert content_of(tmp_path) == before

    names = ("code/train2.py", "code/json.py", "../x", "code/../../x", "agents.token", "over-1.json", "code/x.so")
    cases = [
        *((name, sent(name, good)) for name in names),
        *(("code/new.pt", sent(name, good)) for name in names),
        ("code/last.pt", sent("code/last.pt", good)),  # of the launch
        ("code/train.py", sent("code/train.py", good)),
        ("code/linked/new.pt", sent("code/linked/new.pt", good)),
        ("code/dangling.pt", sent("code/dangling.pt", good)),
        ("code/new.pt", sent("code/new.pt", good, size=7)),
        ("code/new.pt", sent("code/new.pt", good, sha256="0" * 64)),
        ("code/new.pt", sent("code/new.pt", good[:5])),
        ("code/new.pt", b"\xff" * 100 + b"\n"),
        ("code/new.pt", b"x" * 200_000),
        ("code/new.pt", b""),
        ("code/new.sav", sent("code/new.sav", b"#!/bin/sh\ntrue\n"[: len(good)])),
        ("code/new.pth", sent("code/new.pth", b"import os".ljust(len(good)))),
    ]
    assert failures_of(changes_nothing, cases) == []


def test_a_source_serves_results_alone(run: Path) -> None:
    (run / "agents.token").write_text("secret")
    (run / "code" / "link.pt").symlink_to("/etc/passwd")
    (run / "code" / "folder").symlink_to("/etc")
    for path in ("agents.token", "code/link.pt", "code/folder/passwd", "code/train.py", "../../etc/passwd", "code/no"):
        with pytest.raises(RefusedFileError), ResultFolder(run).reading(path):
            pass


def test_a_full_disk_is_named(run: Path, tmp_path: Path) -> None:
    target = made(tmp_path / "beta")
    wanted = replace(file("code/new.pt", b""), size=2**49)
    with Stream(lambda _there: None) as here:
        received = receive_files(here, ResultFolder(target), [wanted])
    assert "MB are needed and" in received.problem


def test_two_nodes_may_send_at_once(run: Path, tmp_path: Path) -> None:
    """Nodes send so to rank 0's node, where files of all ranks are collected."""
    target, results = ResultFolder(made(tmp_path / "gamma")), list[Received]()
    sources = [run, made(tmp_path / "beta")]
    for number, source in enumerate(sources):
        for file_number in range(40):
            (source / "code" / "out" / f"{number}-{file_number}.bin").write_bytes(os.urandom(2000))

    def send(source: Path) -> None:
        files = ResultFolder(source).listed().files
        with Stream(lambda there: send_files(there, ResultFolder(source), [one.path for one in files])) as here:
            results.append(receive_files(here, target, files))

    threads = [threading.Thread(target=send, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(one.files, one.problem) for one in results] == [(40, "")] * 2
    listed = target.listed().files
    assert len(listed) == 80
    assert all(one.copied for one in listed)
    assert not (tmp_path / "gamma" / ".copying").exists()
