"""A rank whose signs of life cannot be written is not taken for one that is frozen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainer.agent.heartbeat import FOLDER, newest

PROGRAM = """
import os, signal, sys, time, resource
from pathlib import Path
from trainer.agent import heartbeat
heartbeat.EVERY_S = 0.05
heartbeat.begin(os.environ)
place = Path(os.environ["ORCH_BEATS"]) / "0"
while not (place.exists() and place.stat().st_size):
    time.sleep(0.01)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a disk that is full
while place.exists():
    time.sleep(0.01)
print("went on", flush=True)
"""


def test_who_cannot_give_a_sign_takes_its_last_one_back(tmp_path: Path) -> None:
    environment = {**os.environ, FOLDER: str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "LOCAL_RANK": "0"}
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert "went on" in done.stdout, done.stderr
    assert "this rank sends no heartbeat any more: OSError: " in done.stderr
    assert list(newest(tmp_path)) == []
