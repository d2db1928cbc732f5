"""A run that went well ends without a word of failure, whichever node's torchrun is the first to leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.run_folder import AGENTS_TOKEN
from tests.trainer.test_agent import PACKAGES, free_port

# Rank 0 has ended, and its torchrun has nothing left to do, when rank 1 comes to the store once more.
SCRIPT = """
import os, time
from datetime import timedelta
from pathlib import Path
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=10))
if os.environ["RANK"] == "0":
    store.set("process", str(os.getpid()))
    store.get("seen")
else:
    process = Path("/proc") / store.get("process").decode()
    store.set("seen", "yes")
    while process.exists() and "Z" not in (process / "stat").read_text().split():
        time.sleep(0.05)
    time.sleep(1.5)
    store.set("late", "word")
    print("the store has kept", store.get("late").decode(), flush=True)
"""


@pytest.mark.slow
def test_the_store_stays_until_the_last_node_has_ended(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / AGENTS_TOKEN).write_text("ab" * 32)
    agents, master = free_port(), free_port()
    environment = {**os.environ, "PYTHONPATH": PACKAGES, "ORCH_RUN_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            (
                sys.executable, "-m", "trainer.agent", "--nodes", "alpha,beta", "--node-rank", str(rank),
                "--first-rank", str(rank), "--address", "127.0.0.1", "--port", str(agents), "--",
                "torchrun", "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1",
                "--master-addr", "127.0.0.1", "--master-port", str(master), "--max-restarts", "0", "script.py",
            ),
            env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        first, second = (node.communicate(timeout=100)[0] for node in nodes)
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], first + second
    assert "the store has kept word" in second
    assert "Traceback" not in first + second
    assert "barrier" not in first + second
