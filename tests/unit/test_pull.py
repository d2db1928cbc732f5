"""`orch pull` on machines in memory whose files are real: every script is really run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.runs import results
from orchestrator.fleet.runs.artifacts import settle_code
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
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Ran(code, said.out, said.err)

    return run


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


HERE = Path("runs") / RUN
CHECKPOINT = {f"checkpoints/step-00000080/{name}" for name in ("state.pt", "vocabulary.json", "manifest.json")}


def test_all_that_the_run_wrote_comes_once(orch: Orch) -> None:
    """Not the code that it was launched with, the token or the plan; a file that differs is kept by node."""
    ran = orch()
    assert ran.code == 0, ran.err
    came = files_in(HERE)
    assert set(came) == {
        *CHECKPOINT, "code/out/model v1.pt", "code/log.txt", "nodes/beta/code/log.txt", "nodes/gamma/code/log.txt",
    }  # fmt: skip
    assert came["code/log.txt"] == b"of alpha\n"
    assert came["nodes/gamma/code/log.txt"] == b"of gamma\n"
    assert f"✓ run {RUN}: 7 files" in ran.err


def test_a_second_call_moves_nothing_and_a_changed_file_comes_again(orch: Orch, here: Shelves) -> None:
    assert orch().code == 0
    again = orch("--json")
    assert (again.code, json_data(again.out)["moved"]) == (0, 0)
    (here.root("alpha") / "runs" / RUN / "code" / "out" / "model v1.pt").write_bytes(b"better weights")
    third = orch(RUN[:6], "--json")
    assert json_data(third.out)["moved"] == len(b"better weights")
    assert files_in(HERE)["code/out/model v1.pt"] == b"better weights"


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
    monkeypatch.setattr(results, "SPARE", 10**18)
    ran = orch()
    assert ran.code == 4
    assert "are free in" in ran.err
    assert "nothing was copied" in ran.err
    assert files_in(HERE) == {}


def test_a_large_file_continues_where_it_was_cut_off(
    orch: Orch, here: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LARGE", 1000)
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
            return 0, f"P/tmp\0F6 2000000000.0 {path}\0F6 2000000000.0 code/good\0", ""
        if argv[0] == "tar":
            return 0, "this is no archive" * 100, ""
        return play(argv, stdin, timeout_s)

    here.nodes["alpha"].programs = hostile
    before = Path("inventory.yaml").read_bytes()
    ran = orch()
    assert ran.code == 5
    assert "alpha: what it sent cannot be read" in ran.err
    assert Path("inventory.yaml").read_bytes() == before
    assert not any(path.name in ("x", "good") for path in Path().rglob("*"))


def test_an_archive_with_another_name_is_refused(orch: Orch, here: Shelves) -> None:
    def other(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if argv[0] == "tar":
            folder = here.root("alpha") / "runs" / RUN
            return play(["tar", "-c", "-C", str(folder), "plan.json"], stdin, timeout_s)
        return play(argv, stdin, timeout_s)

    here.nodes["alpha"].programs = other
    ran = orch()
    assert ran.code == 5
    assert "alpha: sent plan.json, which was not asked for" in ran.err
    assert not (HERE / "plan.json").exists()
