"""`orch tensorboard` with the event files of a training and a real TensorBoard."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from orchestrator.cli import main
from orchestrator.cli import tensorboard as command
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.processes.engine import ProcessEngine
from tests.conftest import NEEDS_TORCH
from trainer.engine.reporting.reporters import Reporters, TrainingBegun

pytestmark = NEEDS_TORCH
SCALARS = "data/plugin/scalars/scalars?run=r1%2Falpha&tag=train%2Floss"


def steps_shown(url: str, wanted: int) -> list[float]:
    """Steps whose loss TensorBoard shows to a browser with the whole address, once there are as many."""
    deadline, steps = time.monotonic() + 90, list[float]()
    browser = build_opener(HTTPCookieProcessor())
    while time.monotonic() < deadline and len(steps) < wanted:
        try:
            assert b"<title>TensorBoard" in browser.open(url, timeout=10).read()
            with browser.open(url.partition("?")[0] + SCALARS, timeout=10) as answer:
                steps = [point[1] for point in json.load(answer)]
        except OSError:  # it does not listen yet, or has not read the file
            time.sleep(0.2)
    return steps


def test_the_loss_of_a_run_on_a_node_and_what_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EVERY_S", 0.5)
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text(f"project: p\nnodes: {{alpha: {{address: 10.0.0.1, workspace: {tmp_path}}}}}\n")
    training = Reporters(TrainingBegun(run_dir=tmp_path / "p" / "runs" / "r1", first_step=1))
    for step in range(1, 6):
        training.figures("train", step, {"loss": 1.0 / step})
    training.end("done")
    (file,) = (tmp_path / "p" / "runs" / "r1" / "tensorboard").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: 3 * len(content) // 4])  # in the middle of an event
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    shown: list[list[float]] = []
    monkeypatch.setattr("secrets.token_urlsafe", lambda _size: "t" * 32)

    def look() -> None:
        shown.append(steps_shown(f"http://127.0.0.2:{port}/?token={'t' * 32}", 1))
        file.write_bytes(content)
        shown.append(steps_shown(f"http://127.0.0.2:{port}/?token={'t' * 32}", 5))
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    threading.Thread(target=look, daemon=True).start()
    with connecting_by(lambda spec: LocalNode(spec.name, engine=ProcessEngine(spec.name))):
        assert main(["tensorboard", "--port", str(port)]) == 0
    assert 1 <= len(shown[0]) < 5
    assert shown[1] == [1, 2, 3, 4, 5]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 1)
