"""A shell script of the user's under the agents of two nodes, with the real torchrun in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.checkpoint import CheckpointManifest
from contract.failures.owners import EXIT_CODES
from contract.run_folder import AGENTS_TOKEN
from tests.trainer.test_agent import PACKAGES, free_port
from trainer import checkpoint_folder
from trainer.agent.ranks import OUR_MODULE

pytestmark = pytest.mark.slow

RUN = """
export PYTHONPATH=.
echo "begin $ORCH_NODE_RANK of $WORLD_SIZE: resume=$ORCH_RESUME"
torchrun train.py "$1"
code=$?
echo "torchrun has ended"
exit $code
"""
TRAIN = """
import os, pathlib, signal, sys, time
rank, generation = os.environ["RANK"], os.environ["ORCH_GENERATION"]
run = pathlib.Path(os.environ["ORCH_RUN_DIR"])
def leave(*_):
    (run / f"asked-{rank}").touch()
    time.sleep(0.5)
    (run / f"saved-{rank}").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
print("rank", rank, "of", os.environ["WORLD_SIZE"], sys.argv[1], flush=True)
(run / f"pid-{rank}-{generation}").write_text(str(os.getpid()))
while not (run / "enough").exists():
    time.sleep(0.05)
"""


class Pair:
    """Two nodes with two ranks each."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        (folder / "run.sh").write_text(RUN)
        (folder / "train.py").write_text(TRAIN)
        (folder / "trainer.py").write_text("raise ImportError('a module of the user')")
        (folder / AGENTS_TOKEN).write_text("ab" * 32)
        self.ports = free_port(), free_port()
        self.nodes = [self._start(rank, command) for rank in (0, 1)]

    def _start(self, rank: int, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        agents, master = self.ports
        environment = {
            **os.environ, "PYTHONPATH": PACKAGES, "ORCH_RUN_DIR": str(self.folder), "OMP_NUM_THREADS": "1",
            "ORCH_RESUME": "", "ORCH_NODE_RANK": str(rank), "WORLD_SIZE": "4", "PET_NNODES": "2",
            "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(master), "PET_RDZV_ID": "toy.0", "PET_RDZV_BACKEND": "static",
        }  # fmt: skip
        where = ("--nodes", "alpha,beta", "--node-rank", str(rank), "--first-rank", str(2 * rank))
        at = ("--address", "127.0.0.1", "--port", str(agents), "--script-ranks", "2")
        with (self.folder / f"log-{rank}").open("w") as log:
            return subprocess.Popen(
                (sys.executable, *OUR_MODULE, "trainer.agent", *where, *at, "--", *command),
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def lines(self, rank: int) -> list[str]:
        return (self.folder / f"log-{rank}").read_text().splitlines()

    def event(self, kind: str) -> dict[str, Any]:
        data = [json.loads(line[6:]) for line in self.lines(0) if line.startswith("@orch ")]
        return next(event for event in data if event["event"] == kind)

    def until(self, *names: str) -> None:
        deadline = time.monotonic() + 200
        while not all((self.folder / name).exists() and (self.folder / name).stat().st_size for name in names):
            assert time.monotonic() < deadline, [self.lines(rank)[-20:] for rank in (0, 1)]
            time.sleep(0.05)

    def until_lines(self, rank: int, *wanted: str) -> None:
        deadline = time.monotonic() + 60
        while missing := set(wanted) - set(self.lines(rank)):
            assert time.monotonic() < deadline, (missing, self.lines(rank)[-20:])
            time.sleep(0.05)

    def until_generation(self, generation: int) -> None:
        self.until(*(f"pid-{rank}-{generation}" for rank in range(4)))

    def codes(self) -> list[int]:
        return [node.wait(200) for node in self.nodes]


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(tmp_path, *getattr(request, "param", ("bash", "run.sh", "a b")))
    try:
        yield pair
    finally:
        for node in pair.nodes:
            node.send_signal(signal.SIGTERM)
        for node in pair.nodes:
            node.wait(90)


def test_a_killed_rank_restarts_the_script_with_the_newest_checkpoint(pair: Pair, tmp_path: Path) -> None:
    pair.until_generation(1)
    pair.until_lines(1, "begin 1 of 4: resume=", "[rank2]: rank 2 of 4 a b", "[rank3]: rank 3 of 4 a b")
    (tmp_path / "own.pt").write_bytes(b"weights")
    manifest = CheckpointManifest(step=7, entry="own.pt")
    saved = checkpoint_folder.publish(
        checkpoint_folder.write(tmp_path / "checkpoints", manifest, None, {"own.pt": tmp_path / "own.pt"})
    )
    os.kill(int((tmp_path / "pid-3-1").read_text()), signal.SIGKILL)
    pair.until_generation(2)
    again = pair.event("restarting")
    assert (again["node"], again["rank"], again["exit_code"], again["outcome"]) == ("beta", 3, -9, "infrastructure")
    assert f"begin 0 of 4: resume={saved.entry}" in pair.lines(0)
    (tmp_path / "enough").touch()
    assert pair.codes() == [0, 0]
    assert "torchrun has ended" in pair.lines(0)


def test_a_request_to_stop_comes_to_the_ranks_and_they_are_waited_for(pair: Pair, tmp_path: Path) -> None:
    pair.until_generation(1)
    for node in pair.nodes:
        node.send_signal(signal.SIGTERM)
    assert pair.codes() == [EXIT_CODES["stopped"]] * 2
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(4))


@pytest.mark.parametrize("pair", [("bash", "-c", "echo unwell; exit 5")], indirect=True)
def test_the_exit_code_of_the_script_counts(pair: Pair) -> None:
    assert pair.codes() == [1, 1]
    over = pair.event("finished")
    assert (over["outcome"], over["exit_code"]) == ("user", 5)
    assert "unwell" in pair.lines(0)
