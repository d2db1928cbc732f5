"""Files that rank 0 alone writes, by agents and torchrun as processes, each node with a folder of its own."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

import pytest

from contract.run_folder import AGENTS_TOKEN
from tests.trainer.saving_scripts import EPOCHS, SCRIPTS
from tests.trainer.test_agent import Node, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGES = os.environ.get("ORCH_TESTED_PACKAGES") or str(Path(__file__).parents[2])
START_S = 150.0


@dataclass
class Cluster:
    """Nodes of one attempt after another, each with the folder of the run below `root`."""

    root: Path
    script: str
    nodes: dict[str, Node] = field(default_factory=dict)
    started: list[Node] = field(default_factory=list)

    def folder(self, name: str) -> Path:
        return self.root / name / "runs" / "r"

    def launch(self, *names: str, attempt: int = 0, options: tuple[str, ...] = ()) -> None:
        """Start an attempt with these nodes, the first of which is rank 0's."""
        agents, master = free_port(), free_port()
        self.nodes = {}
        for rank, name in enumerate(names):
            folder = self.folder(name)
            if not (folder / "code").exists():
                (folder / "code").mkdir(parents=True)
                (folder / "code" / "train.py").write_text(self.script)
                (folder / "code-ab.list").write_text("./train.py\0")
            (folder / AGENTS_TOKEN).write_text("ab" * 32)
            torchrun = (
                "torchrun", "--nnodes", str(len(names)), "--node-rank", str(rank), "--nproc-per-node", "1",
                "--master-addr", "127.0.0.1", "--master-port", str(master), "--rdzv-id", "r", "--max-restarts", "0",
            )  # fmt: skip
            place = ("--nodes", ",".join(names), "--node-rank", str(rank), "--first-rank", str(rank))
            meet = ("--address", "127.0.0.1", "--port", str(agents), "--restarts", "2", *options)
            process = Popen(
                (sys.executable, "-P", "-m", "trainer.agent", *place, *meet, "--", *torchrun, "train.py"),
                cwd=folder / "code",
                env={
                    **os.environ, "PYTHONPATH": PACKAGES, "ORCH_RUN_ID": "r", "ORCH_ATTEMPT": str(attempt),
                    "ORCH_RUN_DIR": str(folder), "ORCH_RESUME": "", "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1",
                },
                stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
            self.nodes[name] = Node(rank, process)
            self.started.append(self.nodes[name])

    def until_epoch(self, epoch: int) -> None:
        self.until(lambda: any(f"ends epoch {epoch}" in line for line in self.nodes["alpha"].lines))

    def until(self, true: Callable[[], object]) -> None:
        wait_until(true, self.nodes.values(), START_S)

    def begins(self, name: str) -> list[int]:
        """Epochs at which the ranks of this node began."""
        found = (re.search(r"begins at epoch (\d+)", line) for line in list(self.nodes[name].lines))
        return [int(match[1]) for match in found if match]

    def kill_rank(self, name: str) -> None:
        """Kill the rank of a node, which is torchrun's child."""
        agent = self.nodes[name].process.pid
        for pid in children(agent):
            for rank in children(pid):
                os.kill(rank, signal.SIGKILL)

    def end(self) -> None:
        for node in self.nodes.values():
            node.process.terminate()
        for node in self.nodes.values():
            node.process.wait(30)
            node.reader.join(10)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == parent:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, SCRIPTS[getattr(request, "param", "last file")])
    try:
        yield cluster
    finally:
        for node in cluster.started:
            below = [rank for pid in children(node.process.pid) for rank in children(pid)]
            for pid in (*children(node.process.pid), *below, node.process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            node.process.wait()
            assert node.process.stdin
            node.process.stdin.close()
            node.reader.join()


@pytest.mark.parametrize("cluster", SCRIPTS, indirect=True)
def test_ranks_continue_at_the_same_epoch(cluster: Cluster) -> None:
    """After a restart on the same nodes, and after a resume with a node that is new to the run."""
    cluster.launch("alpha", "beta")
    cluster.until_epoch(3)
    cluster.kill_rank("beta")
    cluster.until(lambda: all(len(cluster.begins(name)) == 2 for name in cluster.nodes))
    restarted = [cluster.begins(name)[-1] for name in cluster.nodes]
    cluster.until_epoch(7)
    cluster.end()
    cluster.launch("alpha", "gamma", "beta", attempt=1)
    cluster.until(lambda: all(cluster.begins(name) for name in cluster.nodes))
    resumed = [cluster.begins(name)[-1] for name in cluster.nodes]
    sys.stdout.write(f"begins after the restart {restarted}, after the resume {resumed}\n")
    assert restarted[0] >= 4
    assert len(set(restarted)) == 1
    assert resumed[0] >= 8
    assert len(set(resumed)) == 1
    cluster.until(lambda: all(node.process.poll() == 0 for node in cluster.nodes.values()))
    assert f"ends epoch {EPOCHS - 1}" in " ".join(cluster.nodes["gamma"].lines)
