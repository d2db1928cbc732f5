"""Scripts with ports of their own on rank 0's node, and torch's store of a run, on two nodes that are processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.trainer.test_agent import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "a second store": """
store = dist.TCPStore(address, own_port, 2, rank == 0, timedelta(seconds=60))
store.set(str(rank), "x")
print("met", len(store.get("0") + store.get("1")), "as", rank, flush=True)
store.add("left", 1)
while rank == 0 and store.add("left", 0) < 2:
    time.sleep(0.05)
""",
    "an address": """
dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=2)
one = torch.ones(1)
dist.all_reduce(one)
print("met", int(one), "as", rank, flush=True)
""",
    "remote calls": """
from torch.distributed import rpc
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2)
print("met", int(rpc.rpc_sync(f"rank{1 - rank}", torch.add, (torch.ones(1), 1))), "as", rank, flush=True)
rpc.shutdown()
""",
}
HEAD = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
rank, own_port = int(os.environ["RANK"]), int(sys.argv[1])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
"""
HOLD = """
print("port", port, flush=True)
store = dist.TCPStore(address, port, timeout=timedelta(seconds=60))
store.set(str(rank), "x")
store.get("0" if rank else "1")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
print("keys", store.check(["0", "1"]), rank, flush=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """A lab of processes in folders of the test's own."""
    own = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")}
    variables = {**os.environ, **own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TP_SOCKET_IFNAME": "lo"}
    subprocess.run(command("lab", "up", "--engine", "process", "--nodes", "2"), env=variables, check=True)
    yield variables
    subprocess.run(command("lab", "down"), env=variables, check=True)


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "orchestrator", *words)


def launched(folder: Path, environment: Mapping[str, str], script: str) -> subprocess.Popen[str]:
    (folder / "mine").mkdir()
    (folder / "mine" / "train.py").write_text(HEAD + script)
    words = command("launch", "--yes", "--workdir", str(folder / "mine"), "--master-port", str(free_port()))
    words = (*words, "--env", "OMP_NUM_THREADS=1", "--env", "TP_SOCKET_IFNAME=lo")
    return subprocess.Popen(
        (*words, "--", "python", "train.py", str(free_port()), str(folder / "enough")),
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_meets_at_the_address_of_rank_0(kind: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    with launched(tmp_path, environment, SCRIPTS[kind]) as run:
        out = run.communicate()[0]
    assert run.returncode == 0, out
    assert out.count("met 2 as") == 2, out


def test_a_program_beside_the_run_does_not_reach_its_store(environment: Mapping[str, str], tmp_path: Path) -> None:
    with launched(tmp_path, environment, HOLD) as run:
        assert run.stdout
        lines: list[str] = []
        for line in run.stdout:
            lines.append(line)
            if " port " in line:
                break
        else:
            pytest.fail("".join(lines))
        port = int(lines[-1].split()[-1])
        for address in ("127.0.0.11", "127.0.0.1"):
            with socket.create_connection((address, port), timeout=20) as stranger:
                stranger.sendall(b"\0" + 0x3C85F7CE.to_bytes(4, "little") + b"\x0b")  # torch's greeting, and a question
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        (tmp_path / "enough").touch()
        out = "".join(lines) + run.communicate()[0]
    assert run.returncode == 0, out
    assert out.count("keys True") == 2, out
