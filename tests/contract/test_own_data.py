"""A script of the user's reads its data by the paths that it has on the computer of the launch: on real processes."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.store.run_record import RunRecord
from tests.json_output import json_data

# The Docker SDK drops the socket of a refused connection without closing it; collected in the test that made it.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

ROOT = Path(__file__).parents[2]
READS = """
set -e
cat data/a.txt ../mydata/b.txt "$ORCH_DATA_DIR/a.txt" "$ORCH_DATA_DIR_MYDATA/b.txt" inner/c.txt
echo written > "$ORCH_RUN_DIR/out-$ORCH_NODE.txt"
"""


@pytest.fixture
def proj(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with two simulated machines."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    for file, text in {"proj/data/a.txt": "one", "mydata/b.txt": "two", "proj/inner/c.txt": "code"}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{text}\n")
    (tmp_path / "proj/run.sh").write_text(READS)
    monkeypatch.chdir(tmp_path / "proj")
    assert main(["lab", "up", "--engine", "process", "--nodes", "2"]) == 0
    yield tmp_path / "proj"
    assert main(["lab", "down"]) == 0
    gc.collect()


def launch_words(*words: str) -> list[str]:
    with socket.create_server(("127.0.0.11", 0)) as free:
        port = free.getsockname()[1]
    return ["launch", "--yes", "--master-port", str(min(port, 65000)), *words, "--", "bash", "run.sh"]


def project(proj: Path, node: str) -> Path:
    return proj.parent / f"state/orch/lab/nodes/{node}/lab"


def test_a_script_reads_its_data_and_nothing_is_copied_twice(proj: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(launch_words("--data", "./data", "--data", "../mydata")) == 0, capsys.readouterr().err
    output = capsys.readouterr()
    assert "left out: data" in output.err
    for node in ("alpha", "beta"):
        (run,) = project(proj, node).glob("runs/*")
        assert (run / f"out-{node}.txt").is_file()
        assert {path.name for path in (run / "code").iterdir()} == {"run.sh", "inner", "data"}
        assert (run / "code/data").is_symlink()
        assert (run / "mydata").is_symlink()
        held = list(project(proj, node).glob("data/[0-9a-f]*"))
        assert {file.name: file.read_text() for folder in held for file in folder.iterdir()} == {
            "a.txt": "one\n",
            "b.txt": "two\n",
        }
        assert not {path.stat().st_mode & 0o222 for folder in held for path in (folder, *folder.iterdir())} - {0}


def test_data_is_listed_and_removed_unless_a_run_reads_it(proj: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (proj / "run.sh").write_text("until [ -e ../mydata/never ]; do sleep 0.2; done\n")
    detached = launch_words("--detach", "--name", "reads", "--data", "../mydata")
    program = (sys.executable, "-c", "from orchestrator.cli import run; run()", *detached)
    subprocess.run(program, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    held = [path.name for path in project(proj, "alpha").glob("data/[0-9a-f]*")]
    capsys.readouterr()
    assert main(["data", "ls", "--json"]) == 0
    listed = json_data(capsys.readouterr().out)["data"]
    (run,) = {run for one in listed for run in one["runs"]}
    assert run.startswith("reads-")
    assert [(one["node"], one["name"], one["in_use"], one["folder"]) for one in listed] == [
        (node, held[0], [run], str(proj.parent / "mydata")) for node in ("alpha", "beta")
    ]
    assert main(["data", "rm", held[0][:6], "--yes"]) == 6
    assert f"run {run} reads {held[0]} on alpha, beta; nothing was removed\n  → orch stop {run}" in (
        capsys.readouterr().err
    )
    assert main(["data", "rm", "--yes"]) == 0
    assert [path.name for path in project(proj, "alpha").glob("data/[0-9a-f]*")] == held
    assert main(["stop", run, "--yes"]) == 0
    assert main(["data", "rm", "nothing", "--yes"]) == 3
    assert main(["data", "rm", held[0][:6], "--yes", "-n", "beta"]) == 0
    assert [list(project(proj, node).glob("data/[0-9a-f]*")) != [] for node in ("alpha", "beta")] == [True, False]


def flip(file: Path, at: int) -> None:
    """Flip a bit on a disk, without changing a time."""
    times, mode = file.stat(), file.stat().st_mode
    file.chmod(0o600)
    with file.open("r+b") as content:
        content.seek(at)
        byte = content.read(1)[0]
        content.seek(at)
        content.write(bytes([byte ^ 8]))
    file.chmod(mode)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def held_file(proj: Path, node: str) -> Path:
    (file,) = project(proj, node).glob("data/*/b.txt")
    return file


def detached(*words: str) -> str:
    """Launch in the background; the id of the run."""
    program = (sys.executable, "-c", "from orchestrator.cli import run; run()", *words)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(program, check=True, env=environment, capture_output=True, text=True).stdout.strip()


@pytest.mark.timeout(600)
def test_a_flipped_bit_is_named_while_a_run_reads_it_and_replaced_before_the_next_start(
    proj: Path, capsys: pytest.CaptureFixture[str], figure: Callable[[str], None]
) -> None:
    (proj / "run.sh").write_text("until [ -e ../mydata/never ]; do sleep 0.2; done\n")
    (proj.parent / "mydata/b.txt").write_bytes(os.urandom(3_000_000))
    assert main([*launch_words("--data", "../mydata")[:-3], "--", "bash", "-c", "true"]) == 0  # the data is there
    for beside in project(proj, "beta").glob("data/.sums/*"):
        assert beside.name == held_file(proj, "beta").parent.name
    flip(held_file(proj, "beta"), 2_999_000)  # the byte is looked for from the end, with the time that others leave
    run = detached(*launch_words("--detach", "--name", "reads", "--data", "../mydata"))
    record, began = RunRecord(run), time.monotonic()
    while not record.journal.damaged and time.monotonic() - began < 300:
        time.sleep(0.1)
    figure(f"named {time.monotonic() - began:.1f} s after the start")
    (found,) = record.journal.damaged
    assert (found.node, found.file, found.wrong, found.offset) == ("beta", "b.txt", "content", 2_999_000)
    assert found.intact_at < found.found_at
    named = "data on beta is damaged: b.txt is not what was sent, at byte 2,999,000; in doubt is what was trained"
    capsys.readouterr()
    for words in (["status", run], ["why", run], ["report", run, "--format", "text"]):
        main(words)
        shown = capsys.readouterr()
        assert named in shown.out + shown.err, words
    inode = held_file(proj, "beta").stat().st_ino
    assert main(["data", "repair", held_file(proj, "beta").parent.name[:6], "--yes"]) == 6, "a run reads it"
    assert main(["stop", run, "--yes"]) == 0
    (proj / "run.sh").write_text("cmp ../mydata/b.txt ../mydata/b.txt\n")
    capsys.readouterr()
    assert main([*launch_words()[:-3], "--resume", run, "--workdir", "."]) == 0, capsys.readouterr().err
    assert held_file(proj, "beta").stat().st_ino != inode, "a process may have the old file mapped"
    assert held_file(proj, "beta").read_bytes() == (proj.parent / "mydata/b.txt").read_bytes()
    assert not held_file(proj, "beta").stat().st_mode & 0o222
    assert not list(project(proj, "beta").glob("data/.sums/*.damaged"))
    capsys.readouterr()
    main(["why", run])
    assert "it was replaced before attempt 1" in capsys.readouterr().out


@pytest.mark.parametrize("is_changed_here", [False, True])
def test_the_doctor_reads_all_data_and_has_damaged_files_sent_again(
    proj: Path, capsys: pytest.CaptureFixture[str], *, is_changed_here: bool
) -> None:
    """Damaged files come from the folder of the launch; from the other node where that has changed since."""
    assert main(launch_words("--data", "./data", "--data", "../mydata")) == 0, capsys.readouterr().err
    flip(held_file(proj, "beta"), 1)
    if is_changed_here:
        (proj.parent / "mydata/b.txt").write_text("other")
    deep = ["doctor", "--deep", "--only", "data.damaged"]
    capsys.readouterr()
    assert main(deep) == 0
    shown = capsys.readouterr()
    assert "b.txt is not what was sent, at byte 1" in shown.out
    assert "bytes of data with what was sent" in shown.err
    assert main(["data", "ls", "--json"]) == 0
    assert [one["node"] for one in json_data(capsys.readouterr().out)["data"] if one["is_damaged"]] == ["beta"]
    assert main([*deep, "--fix", "--yes"]) == 0
    shown = capsys.readouterr()
    assert "1 fixed; checking again" in shown.err, shown.err
    assert "not what was sent" not in shown.out
    assert held_file(proj, "beta").read_text() == "two\n"


def test_damage_without_an_intact_copy_is_refused_with_the_way_out(
    proj: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(launch_words("--data", "./data", "--data", "../mydata")) == 0, capsys.readouterr().err
    for node in ("alpha", "beta"):
        flip(held_file(proj, node), 2)
    (proj.parent / "mydata/b.txt").write_text("other")
    assert main(["doctor", "--deep", "--only", "data.damaged"]) == 0
    capsys.readouterr()
    assert main(["data", "repair", "--yes"]) == 5
    shown = capsys.readouterr().err
    assert "b.txt of data" in shown
    assert "no node has an intact copy" in shown
    (proj.parent / "mydata/b.txt").write_text("two\n")
    assert main(["data", "repair", "--yes"]) == 0
    assert [held_file(proj, node).read_text() for node in ("alpha", "beta")] == ["two\n", "two\n"]
