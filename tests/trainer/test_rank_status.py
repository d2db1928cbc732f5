"""A rank whose status cannot be written is not taken for one that is frozen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainer.agent.rank_signs import RankSignsReader
from trainer.agent.rank_status import FOLDER

PROGRAM = """
import os, signal, sys, time, resource
from pathlib import Path
from trainer.agent import heartbeat, rank_status
rank_status.EVERY_S = 0.05
heartbeat.begin(os.environ)
place = Path(os.environ["ORCH_BEATS"]) / f"{os.getpid()}.status"
while not (place.exists() and place.stat().st_size):
    time.sleep(0.01)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a disk that is full
while place.exists():
    time.sleep(0.01)
print("went on", flush=True)
"""


def test_a_rank_that_cannot_write_its_status_removes_it(tmp_path: Path) -> None:
    environment = {**os.environ, FOLDER: str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "LOCAL_RANK": "0"}
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert "went on" in done.stdout, done.stderr
    assert "this rank reports no status any more: OSError: " in done.stderr
    assert RankSignsReader(tmp_path, "alpha", 0, 5.0).final(0) == ()
