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
from urllib.request import urlopen

import pytest

from orchestrator.cli import main
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.processes.engine import ProcessEngine
from tests.conftest import NEEDS_TORCH
from trainer.engine.reporting.reporters import Reporters, TrainingBegun

pytestmark = NEEDS_TORCH
SCALARS = "data/plugin/scalars/scalars?run=r1%2Falpha&tag=train%2Floss"


def answered(url: str) -> list[list[float]]:
    """Points of the loss, once TensorBoard shows it."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            with urlopen(url + SCALARS, timeout=10) as answer:  # noqa: S310  # http, of this computer
                return list(json.load(answer))
        except OSError:  # it does not listen yet, or has not read the file
            time.sleep(0.2)
    return []


def test_the_loss_of_a_run_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text(f"project: p\nnodes: {{alpha: {{address: 10.0.0.1, workspace: {tmp_path}}}}}\n")
    training = Reporters(TrainingBegun(run_dir=tmp_path / "p" / "runs" / "r1", first_step=1))
    for step in range(1, 6):
        training.figures("train", step, {"loss": 1.0 / step})
    training.end("done")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    points: list[list[float]] = []

    def look() -> None:
        points.extend(answered(f"http://127.0.0.1:{port}/"))
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    threading.Thread(target=look, daemon=True).start()
    with connecting_by(lambda spec: LocalNode(spec.name, engine=ProcessEngine(spec.name))):
        assert main(["tensorboard", "--port", str(port)]) == 0
    assert [point[1] for point in points] == [1, 2, 3, 4, 5]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)
