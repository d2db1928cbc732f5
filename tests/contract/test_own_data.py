"""A script of the user's reads its data by the paths that it has on the computer of the launch: on real processes."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
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
    said = capsys.readouterr()
    assert "left out: data" in said.err
    for node in ("alpha", "beta"):
        (run,) = project(proj, node).glob("runs/*")
        assert (run / f"out-{node}.txt").is_file()
        assert {path.name for path in (run / "code").iterdir()} == {"run.sh", "inner", "data"}
        assert (run / "code/data").is_symlink()
        assert (run / "mydata").is_symlink()
        held = list(project(proj, node).glob("data/*"))
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
    held = [path.name for path in project(proj, "alpha").glob("data/*")]
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
    assert [path.name for path in project(proj, "alpha").glob("data/*")] == held
    assert main(["stop", run, "--yes"]) == 0
    assert main(["data", "rm", "nothing", "--yes"]) == 3
    assert main(["data", "rm", held[0][:6], "--yes", "-n", "beta"]) == 0
    assert [list(project(proj, node).glob("data/*")) != [] for node in ("alpha", "beta")] == [True, False]
