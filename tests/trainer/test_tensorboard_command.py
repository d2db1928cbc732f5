"""`orch tensorboard` with a real TensorBoard: runs of two nodes side by side, over one command's stdin and stdout."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path

import pytest

from orchestrator.fleet.tensorboard import Board, EventFiles, event_files, run_ids
from orchestrator.nodes import board_program
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.processes.engine import ProcessEngine
from orchestrator.specs.errors import ConfigError, ConflictError, RunFailedError
from tests import lan
from tests.conftest import NEEDS_TORCH
from trainer.engine.reporting.reporters import Reporters, TrainingBegun

pytestmark = NEEDS_TORCH


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def written(project: Path, run_id: str, steps: int) -> Reporters:
    """Event files as a training writes them."""
    board = Reporters(TrainingBegun(run_dir=project / "runs" / run_id, first_step=1))
    for step in range(1, steps + 1):
        board.figures("train", step, {"loss": 1.0 / step})
    return board


def asked(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content
    return content


def processes(mark: str) -> list[int]:
    """Processes with this word in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in file.read_bytes().decode(errors="replace"):
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def two(tmp_path: Path) -> tuple[list[LocalNode], dict[str, str]]:
    """Two nodes that are folders of this computer, each with a run."""
    nodes = [LocalNode(name, engine=ProcessEngine(name)) for name in ("alpha", "beta")]
    places = {node.name: str(tmp_path / node.name) for node in nodes}
    boards = [written(Path(places["alpha"]), "r1", 3), written(Path(places["beta"]), "r2", 5)]
    for board in boards:
        board.end("done")
    return nodes, places


def until(condition: object, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


def test_runs_of_two_nodes_side_by_side_and_nothing_left(two, tmp_path: Path) -> None:
    nodes, places = two
    found, silent = event_files(nodes, places, ["r1", "r2"])
    assert (silent, [(one.run_id, one.node) for one in found]) == ({}, [("r1", "alpha"), ("r2", "beta")])
    board = Board(nodes, found, [], 0)
    assert board.copied_from == ("beta",)
    ready, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            board.serve(ready.set)
        except BaseException as error:
            errors.append(error)
        ended.set()

    threading.Thread(target=serve, daemon=True).start()
    assert ready.wait(90), errors
    assert b"<title>TensorBoard" in asked(board.port, "/")
    until(lambda: sorted(json.loads(asked(board.port, "/data/runs"))) == ["r1", "r2"])
    scalars = lambda: json.loads(asked(board.port, "/data/plugin/scalars/scalars?run=r2&tag=train%2Floss"))  # noqa: E731
    until(lambda: [point[1] for point in scalars()] == [1, 2, 3, 4, 5])
    more = Reporters(TrainingBegun(run_dir=Path(places["beta"]) / "runs" / "r2", first_step=6))
    more.figures("train", 6, {"loss": 0.1})
    more.end("done")
    until(lambda: 6 in [point[1] for point in scalars()])
    several = [threading.Thread(target=asked, args=(board.port, "/index.js")) for _ in range(6)]
    for one in several:
        one.start()
    for one in several:
        one.join(60)
        assert not one.is_alive()
    logs = [
        one
        for one in processes("tensorboard.main\0--logdir")
        if "orch-board-" in Path(f"/proc/{one}/cmdline").read_text()
    ]
    assert logs
    for process in logs:
        os.kill(process, signal.SIGKILL)
    assert ended.wait(30)
    assert isinstance(errors[0], RunFailedError)
    until(lambda: not any(Path(f"/proc/{process}/fd").exists() for process in logs), 30)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", board.port), 1)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = json.dumps({"links": {}, "port": 0})
    command = [sys.executable, "-c", getsource(board_program), config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        yield running
        running.kill()


@pytest.mark.parametrize("how", ["the end of stdin", "half a frame"])
def test_the_program_ends_with_its_stdin(program, tmp_path: Path, how: str) -> None:
    until(lambda: list(tmp_path.glob("orch-board-*")))
    if how == "half a frame":
        program.stdin.write(struct.pack(">BI", 1, 1))
    program.stdin.close()
    assert program.wait(30) == 0
    assert list(tmp_path.glob("orch-board-*")) == []
    until(lambda: not [one for one in processes(str(tmp_path)) if one != os.getpid()], 20)


def test_a_container_with_the_least_privileges() -> None:
    node = FakeNode("alpha")
    node.engine.held["sha256:1"] = lan.IMAGE
    files = EventFiles(run_id="r1", node="alpha", folder="/w/p/runs/r1", user="7:8", sizes={"tensorboard/e": 1, "e": 2})
    board = Board([node], [files], ["orch/orch:cpu"], 0)
    words = " ".join(board._words())
    board._end()
    for expected in (
        "docker run --interactive", "--rm", "--network none", "--read-only", "--cap-drop ALL", "--user 7:8",
        "no-new-privileges", "source=/w/p/runs/r1/tensorboard,target=/logs/0,readonly", "--memory 2048m",
    ):  # fmt: skip
        assert expected in words
    assert "--detach" not in words
    assert words.count("--mount") == 1  # never the run's folder itself, which holds the agents' token


def test_refusals(two) -> None:
    nodes, places = two
    found, _ = event_files(nodes, places, ["r1"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConflictError, match="cannot be listened on"):
        Board(nodes, found, [], taken.getsockname()[1])
    assert event_files(nodes, places, ["r9"]) == ((), {})
    with pytest.raises(ConfigError, match="is no run id"):
        run_ids(nodes, ["../r1"])
    node = FakeNode("alpha")
    board = Board([node], [EventFiles(run_id="r1", node="alpha", folder="/w", user="1:1", sizes={"a/b": 1})], [], 0)
    with pytest.raises(ConfigError, match="no image with TensorBoard"):
        board._words()
    board._end()


def test_names_that_leave_the_folder_are_no_files() -> None:
    node = FakeNode("alpha", programs=lambda *_: (0, "1\n1\n/w/p/runs/r1\n5 ../x\n6 a/../../b\n7 /etc/x\n8 t/ok\n", ""))
    found, _ = event_files([node], {"alpha": "/w/p"}, ["r1"])
    assert dict(found[0].sizes) == {"t/ok": 8}


def test_a_frame_that_is_none_ends_it(tmp_path: Path) -> None:
    node = FakeNode("alpha", programs=lambda *_: (0, "garbage of a node's shell", ""))
    node.engine = ProcessEngine("alpha")  # type: ignore[assignment]
    board = Board([node], [EventFiles(run_id="r", node="alpha", folder="/w", user="1:1", sizes={"a/b": 1})], [], 0)
    board._frames.put(None)
    with pytest.raises(RunFailedError, match="not a frame"):
        board.serve(lambda: None)
