"""`orch pull` on machines in memory whose files are real: every script is really run."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.runs import bring_results
from orchestrator.fleet.runs.code_files import code_digest, code_files
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.upload_code import settle_code
from orchestrator.nodes.fake import Answer
from orchestrator.specs.errors import NodeUnreachableError
from tests.contract.played import play
from tests.json_output import json_data
from tests.shelves import RUN, Shelves, write_checkpoint
from tests.unit.conftest import Ran

Orch = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path) -> Shelves:
    """A run of three nodes: a script that wrote a model on alpha, a log of its own on each node, and a checkpoint."""
    shelves = Shelves(tmp_path / "machines")
    for name in shelves.names:
        code = shelves.root(name) / "runs" / RUN / "code"
        code.mkdir(parents=True)
        (code / "train.py").write_text("print(1)\n")
        (code / "log.txt").write_text("old\n")
        os.utime(code / "train.py", (1e9, 1e9))
        os.utime(code / "log.txt", (1e9, 1e9))
        settle_code(shelves.nodes[name], str(code.parent), "ab12", ("train.py", "log.txt"))
        (code / "log.txt").write_text(f"of {name}\n")
        os.utime(code / "log.txt", (2e9, 2e9))
        (code.parent / "agents.token").write_text("secret")
        (code.parent / "plan.json").write_text("{}")
    run = shelves.root("alpha") / "runs" / RUN
    (run / "code" / "out").mkdir()
    (run / "code" / "out" / "model v1.pt").write_bytes(b"weights")
    for name in ("alpha", "beta"):
        write_checkpoint(shelves.root(name), 80)
    (run / "checkpoints" / ".tmp-step").write_text("unfinished")
    (run / "attempts" / "0").mkdir(parents=True)
    (run / "attempts" / "0" / "owner").write_text("ana")
    return shelves


@pytest.fixture
def orch(here: Shelves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Orch:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    nodes = [f"  {spec.name}: {{address: {spec.address}, workspace: {spec.workspace}}}" for spec in here.specs]
    Path("inventory.yaml").write_text("\n".join(["project: orch", "nodes:", *nodes, ""]))

    def run(*argv: str) -> Ran:
        with connecting_by(here.connect):
            code = main(["pull", *argv])
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return Ran(code, output.out, output.err)

    return run


def files_in(folder: Path) -> dict[str, bytes]:
    """Pulled files, without the one that keeps them from being sent."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if not name.endswith(".gitignore")}


HERE = Path("runs") / RUN
CHECKPOINT = {f"checkpoints/step-00000080/{name}" for name in ("state.pt", "vocabulary.json", "manifest.json")}


def test_all_that_the_run_wrote_comes_once(orch: Orch) -> None:
    """The code that it was launched with stays, as orch's own files do; a file that differs is stored by node."""
    ran = orch()
    assert ran.code == 0, ran.err
    came = files_in(HERE)
    assert set(came) == {
        *CHECKPOINT, "code/out/model v1.pt", "code/log.txt", "nodes/beta/code/log.txt", "nodes/gamma/code/log.txt",
    }  # fmt: skip
    assert came["code/log.txt"] == b"of alpha\n"
    assert came["nodes/gamma/code/log.txt"] == b"of gamma\n"
    assert f"✓ run {RUN}: 7 files" in ran.err
    assert f"  written in the folder of your script: {HERE}/code/log.txt, {HERE}/code/out/model v1.pt\n" in ran.err
    assert ran.err.count("copying") == 1, "one line on the node with several files; the last line has the end"


def test_a_second_call_moves_nothing_and_a_changed_file_comes_again(orch: Orch, here: Shelves) -> None:
    assert orch().code == 0
    again = orch("--json")
    assert (again.code, json_data(again.out)["moved"]) == (0, 0)
    (here.root("alpha") / "runs" / RUN / "code" / "out" / "model v1.pt").write_bytes(b"better weights")
    third = orch(RUN[:6], "--json")
    assert json_data(third.out)["moved"] == len(b"better weights")
    assert files_in(HERE)["code/out/model v1.pt"] == b"better weights"


def test_what_was_pulled_is_not_sent_with_the_next_launch(orch: Orch) -> None:
    Path("train.py").write_text("print(1)\n")
    before = code_files(Path())
    assert orch().code == 0
    assert len(files_in(HERE)) == 7
    assert set(code_files(Path()).names) == set(before.names)
    assert code_digest(Path()) == folder_digest(Path(), before.names)


def test_a_folder_runs_of_the_users_own_is_sent_as_before(orch: Orch) -> None:
    """TensorBoard's writer makes one. What the user has removed from a pulled run is not written again."""
    Path("runs").mkdir()
    Path("runs/mine.txt").write_text("mine")
    assert orch().code == 0
    assert [name for name in code_files(Path()).names if name.startswith("runs")] == ["runs/mine.txt"]
    (HERE / ".gitignore").unlink()
    assert orch().code == 0
    assert f"{HERE}/code/log.txt" in code_files(Path()).names


@pytest.mark.parametrize("path", ["out", "out/", "./out/model v1.pt", "code/out", "out/*.pt", "*/model*"])
def test_paths_are_those_of_the_script(orch: Orch, path: str) -> None:
    ran = orch(RUN, path, "--to", "there")
    assert ran.code == 0, ran.err
    assert set(files_in(Path("there") / HERE)) == {"code/out/model v1.pt"}


def test_a_path_that_is_not_there_names_those_that_are(orch: Orch) -> None:
    ran = orch(RUN, "result.csv")
    assert ran.code == 3
    assert "wrote no file that matches result.csv; its files: checkpoints/, log.txt, out/" in ran.err


def test_a_run_that_is_not_known_or_one_of_two(orch: Orch, here: Shelves) -> None:
    second = here.root("beta") / "runs" / "0101-second"
    second.mkdir()
    os.utime(second, (1, 1))
    ran = orch("0103")
    assert (ran.code, "no node has files of a run 0103" in ran.err) == (3, True), ran.err
    assert f"note: {RUN}, the newer of 2\n" in orch("0").err


def test_a_disk_that_is_too_small_is_found_before_anything_is_copied(
    orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bring_results, "SPARE", 10**18)
    ran = orch()
    assert ran.code == 4
    assert "are free in" in ran.err
    assert "nothing was copied" in ran.err
    assert files_in(HERE) == {}


def test_a_large_file_continues_where_it_was_cut_off(
    orch: Orch, here: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bring_results, "LARGE", 1000)
    source = here.root("alpha") / "runs" / RUN / "code" / "large.bin"
    source.write_bytes(bytes(range(256)) * 40)
    asked: list[str] = []

    def cut_off(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if argv[0] == "tail" and argv[-1].endswith("large.bin"):
            asked.append(argv[2])
            if len(asked) == 1:
                return 0, source.read_bytes()[:5000].decode(errors="surrogateescape"), ""
        return play(argv, stdin, timeout_s)

    here.nodes["alpha"].programs = cut_off
    first = orch(RUN, "large.bin")
    assert (first.code, "became smaller while it was copied" in first.err) == (5, True), first.err
    assert not (HERE / "code" / "large.bin").exists()
    second = orch(RUN, "large.bin")
    assert second.code == 0, second.err
    assert asked == ["+1", "+5001"]
    assert files_in(HERE) == {"code/large.bin": source.read_bytes()}


def test_a_node_out_of_reach_is_named_and_the_others_come(orch: Orch, here: Shelves) -> None:
    def gone(argv: Sequence[str], _stdin: bytes, _timeout_s: float) -> Answer:
        raise NodeUnreachableError("no answer in 5 s", node="gamma")

    here.nodes["gamma"].programs = gone
    ran = orch("--to", "there")
    assert ran.code == 5
    assert f"gamma: not all files were copied\n  → again, for the rest: orch pull {RUN} --to there" in ran.err
    assert "code/out/model v1.pt" in files_in(Path("there") / HERE)


@pytest.mark.parametrize("path", ["../../inventory.yaml", "/etc/passwd", "code/../../x", "code//x"])
def test_a_hostile_path_is_never_written(orch: Orch, here: Shelves, path: str) -> None:
    def hostile(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if argv[:2] == ["sh", "-c"] and "F%s" in argv[2]:
            return 0, f"P/tmp\0F6 8 2000000000.0 {path}\0F6 8 2000000000.0 code/good\0", ""
        if _asks_for_archive(argv):
            return 0, "this is no archive" * 100, ""
        return play(argv, stdin, timeout_s)

    here.nodes["alpha"].programs = hostile
    before = Path("inventory.yaml").read_bytes()
    ran = orch()
    assert ran.code == 5
    assert "alpha: not copied: the archive that it sent cannot be read" in ran.err
    assert Path("inventory.yaml").read_bytes() == before
    assert not any(path.name in ("x", "good") for path in Path().rglob("*"))


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ({"name": "plan.json"}, "plan.json, which was not asked for"),
        ({"name": "../../inventory.yaml"}, "../../inventory.yaml, which was not asked for"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "code/good is no regular file"),
        ({"type": tarfile.LNKTYPE, "linkname": "../../inventory.yaml"}, "code/good is no regular file"),
        ({"type": tarfile.CHRTYPE}, "code/good is no regular file"),
        ({"size": 10**13}, "code/good is larger than it was"),
        ({"pax_headers": {"mtime": "nan"}}, "cannot convert float NaN to integer"),
        ({"pax_headers": {"GNU.sparse.map": "0,x", "GNU.sparse.size": "7"}}, "it is no tar archive: ValueError"),
        ({"pax_headers": {"comment": "x" * 9_000_000}}, "more data than the files have"),
    ],
)
def test_an_archive_with_anything_else_names_the_node_and_the_others_come(
    orch: Orch, here: Shelves, member: dict[str, Any], reason: str
) -> None:
    info = tarfile.TarInfo("code/good")
    for name, value in member.items():
        setattr(info, name, value)
    archive = info.tobuf(tarfile.PAX_FORMAT) + bytes(10240)

    def hostile(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if argv[:2] == ["sh", "-c"] and "F%s" in argv[2]:
            return 0, "P/tmp\0F0 0 2000000000.0 code/good\0", ""
        if _asks_for_archive(argv):
            return 0, archive.decode(errors="surrogateescape"), ""
        return play(argv, stdin, timeout_s)

    here.nodes["beta"].programs = hostile
    ran = orch()
    assert ran.code == 5
    assert f"error: beta: not copied: the archive that it sent cannot be read: {reason}" in ran.err
    assert not (HERE / "code" / "good").exists()
    assert files_in(HERE)["code/out/model v1.pt"] == b"weights"
    assert "nodes/gamma/code/log.txt" in files_in(HERE)


def test_a_file_that_the_node_does_not_send_is_named(orch: Orch, here: Shelves) -> None:
    def less(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        saved = [word for word in argv if word != "code/out/model v1.pt"]
        return play(saved if _asks_for_archive(argv) else argv, stdin, timeout_s)

    here.nodes["alpha"].programs = less
    ran = orch()
    assert (ran.code, "alpha: not copied: code/out/model v1.pt was not sent" in ran.err) == (5, True), ran.err
    assert files_in(HERE)["code/log.txt"] == b"of alpha\n"


def test_a_file_of_10_tb_is_left_out_by_name_and_the_rest_comes(orch: Orch, here: Shelves) -> None:
    with (here.root("beta") / "runs" / RUN / "code" / "huge.bin").open("wb") as file:
        file.truncate(10**13)
    ran = orch("--json")
    assert ran.code == 5
    assert "beta: not copied: code/huge.bin has 10000.0 GB, 0.0 GB of them data, and " in ran.err
    data = json_data(ran.out)
    assert data["left_out"] == [{"path": "code/huge.bin", "node": "beta", "bytes": 10**13}]
    assert {*files_in(HERE)} == {one["path"] for one in data["files"]}
    assert {"code/out/model v1.pt", "nodes/beta/code/log.txt", "nodes/gamma/code/log.txt"} <= {*files_in(HERE)}


def test_a_node_that_claims_the_whole_disk_leaves_the_others_their_room(
    orch: Orch, here: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the thousand files of alpha would fit alone, and they are listed before those of the others."""
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(bring_results.shutil, "disk_usage", lambda _: usage._replace(free=bring_results.SPARE + 3000))
    code = here.root("alpha") / "runs" / RUN / "code"
    for number in range(50):
        (code / f"part-{number:02}").write_bytes(b"x" * 100)
    ran = orch(RUN, "part-*", "log.txt")
    assert ran.code == 5
    assert "; and 16 more\n" in ran.err
    came = files_in(HERE)
    assert {"code/log.txt", "nodes/beta/code/log.txt", "nodes/gamma/code/log.txt"} <= {*came}
    assert len(came) == 3 + 29, "a node has what the other two do not need: 2,981 bytes, its log among them"


@pytest.mark.parametrize("large", [1000, 10**9])
def test_holes_stay_holes(orch: Orch, here: Shelves, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(bring_results, "LARGE", large)
    source = here.root("alpha") / "runs" / RUN / "code" / "map.bin"
    with source.open("wb") as file:
        for place in (3_000_000, 50_000_000):
            file.seek(place)
            file.write(bytes(range(1, 256)) * 1000)
        file.truncate(90_000_000)
    ran = orch(RUN, "map.bin")
    assert ran.code == 0, ran.err
    came = HERE / "code" / "map.bin"
    assert came.read_bytes() == source.read_bytes()
    assert came.stat().st_blocks * 512 < 1_000_000


def test_only_files_of_the_same_size_are_compared(orch: Orch, here: Shelves) -> None:
    hashed: list[bytes] = []

    def watched(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if "sha256sum" in argv[2:3][0]:
            hashed.append(stdin)
        return play(argv, stdin, timeout_s)

    here.nodes["beta"].programs = watched
    (here.root("beta") / "runs" / RUN / "code" / "log.txt").write_text("longer than the others")
    assert orch().code == 0
    assert [name for names in hashed for name in names.split(b"\0") if b"log.txt" in name] == []
    assert hashed, "the checkpoints are alike on two nodes"


def test_files_that_an_active_run_writes_and_removes_come_or_are_named(orch: Orch, here: Shelves) -> None:
    """A log grows, and an old file is removed, after the list was made and while the archive is read."""
    code = here.root("alpha") / "runs" / RUN / "code"
    (code / "grows.log").write_text("line 1\n")
    (code / "old.bin").write_bytes(b"old")

    def active(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if not _asks_for_archive(argv):
            return play(argv, stdin, timeout_s)
        (code / "old.bin").unlink(missing_ok=True)
        with (code / "grows.log").open("a") as log:
            log.write("line 2\n")
        exit_code, archive, errors = play(argv, stdin, timeout_s)
        with (code / "grows.log").open("a") as log:
            log.write("line 3, which is not in the archive\n")
        return exit_code, archive, errors

    here.nodes["alpha"].programs = active
    ran = orch("--json")
    assert ran.code == 0, ran.err
    assert "note: still written to while it was copied; pull again for the rest: alpha code/grows.log\n" in ran.err
    assert "note: removed on the node before it was copied: alpha code/old.bin\n" in ran.err
    data = json_data(ran.out)
    assert [one["path"] for one in data["still_written"]] == ["code/grows.log"]
    assert {*files_in(HERE)} == {one["path"] for one in data["files"]}
    assert files_in(HERE)["code/grows.log"].startswith(b"line 1\nline 2\n")
    here.nodes["alpha"].programs = play
    again = orch()
    assert (again.code, "note: still" in again.err) == (0, False), again.err
    assert files_in(HERE)["code/grows.log"] == (code / "grows.log").read_bytes()


@pytest.mark.parametrize(("exit_code", "comes"), [(1, True), (2, False)])
def test_a_file_that_changes_is_no_error_of_tar_and_any_other_is(
    orch: Orch, here: Shelves, tmp_path: Path, exit_code: int, comes: bool
) -> None:
    """tar exits with 1 where a file has changed while it was read."""
    program = tmp_path / "bin" / "tar"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nPATH=${{PATH#*:}}\ntar \"$@\"\necho 'log: file changed as we read it' >&2\nexit {exit_code}\n"
    )
    program.chmod(0o755)

    def changing(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        with_ours = ["env", f"PATH={program.parent}:{os.environ['PATH']}", *argv]
        return play(with_ours if _asks_for_archive(argv) else argv, stdin, timeout_s)

    here.nodes["alpha"].programs = changing
    ran = orch()
    assert ran.code == (0 if comes else 5), ran.err
    assert ("file changed as we read it" in ran.err) is not comes


def _asks_for_archive(argv: Sequence[str]) -> bool:
    return argv[0] == "sh" and "tar -c -S" in argv[2]
