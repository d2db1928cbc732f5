"""A run that went well ends without a report of a failure, whichever node's torchrun is the first to leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contract.event_lines import decode_event
from contract.events import Finished
from contract.run_folder import AGENTS_TOKEN
from tests.trainer.test_agent import PACKAGES, free_port
from tests.trainer.test_store_proxy import until
from trainer.agent.processes import all_processes, proc_text

# Rank 0 has ended, and its torchrun has nothing left to do, when rank 1 comes to the store once more.
SCRIPT = """
import os, time
from datetime import timedelta
from pathlib import Path
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=60))
if os.environ["RANK"] == "0":
    store.set("process", str(os.getpid()))
    store.get("seen")
else:
    process = Path("/proc") / store.get("process").decode()
    store.set("seen", "yes")
    try:
        while "Z" not in (process / "stat").read_text().split():
            time.sleep(0.05)
    except OSError:
        pass
    time.sleep(1.5)
    store.set("late", "word")
    print("the store has kept", store.get("late").decode(), flush=True)
"""

TRAINING = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1))
    print("reduced", flush=True)
    time.sleep(0.2)
"""


@pytest.mark.slow
def test_the_store_stays_until_the_last_node_has_ended(tmp_path: Path) -> None:
    nodes = two_agents(tmp_path, SCRIPT)
    try:
        first, second = (node.communicate(timeout=100)[0] for node in nodes)
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], first + second
    assert "the store has kept word" in second
    assert "Traceback" not in first + second
    assert "barrier" not in first + second


@pytest.mark.slow
def test_ranks_end_with_the_agent_that_has_their_store_by_name_and_leave_no_process(tmp_path: Path) -> None:
    nodes = two_agents(tmp_path, TRAINING, "--absence", "15")
    try:
        assert nodes[1].stdout
        assert any("reduced" in line for line in nodes[1].stdout)
        nodes[0].send_signal(signal.SIGKILL)
        _, second = (node.communicate(timeout=100)[0] for node in nodes)
        until(lambda: not _of_run(tmp_path), 60)
    finally:
        for pid in _of_run(tmp_path):
            os.kill(pid, signal.SIGKILL)
        for node in nodes:
            node.communicate()
    assert "the connection to alpha has ended" in second
    (end,) = [event for event in map(decode_event, second.splitlines()) if isinstance(event, Finished)]
    assert (end.outcome, end.node) == ("infrastructure", "alpha")
    assert end.reason.startswith("it could not be reached for 15 s")


def _of_run(folder: Path) -> list[int]:
    """Processes whose environment names this folder."""
    return [one.pid for one in all_processes() if f"ORCH_RUN_DIR={folder}\0" in proc_text(one.pid, "environ")]


def two_agents(folder: Path, script: str, *options: str) -> list[subprocess.Popen[str]]:
    (folder / "script.py").write_text(script)
    (folder / AGENTS_TOKEN).write_text("ab" * 32)
    agents, master = free_port(), free_port()
    environment = {**os.environ, "PYTHONPATH": PACKAGES, "ORCH_RUN_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            (
                sys.executable, "-m", "trainer.agent", "--nodes", "alpha,beta", "--node-rank", str(rank),
                "--first-rank", str(rank), "--address", "127.0.0.1", "--port", str(agents), *options, "--",
                "torchrun", "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1",
                "--master-addr", "127.0.0.1", "--master-port", str(master), "--max-restarts", "0", "script.py",
            ),
            env={**environment, "MASTER_PORT": str(master)},
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
