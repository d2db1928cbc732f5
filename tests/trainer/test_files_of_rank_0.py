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
START_S = 100.0


@dataclass
class Cluster:
    """Nodes of one attempt after another, each with the folder of the run below `root`."""

    root: Path
    script: str
    nodes: dict[str, Node] = field(default_factory=dict)
    started: list[Node] = field(default_factory=list)

    def folder(self, name: str) -> Path:
        return self.root / name / "runs" / "r"

    def launch(self, *names: str, attempt: int = 0, options: tuple[str, ...] = (), alone: bool = False) -> None:
        """Start an attempt with these nodes, the first of which is rank 0's. `alone`: without torchrun."""
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
            command = (sys.executable, "-u", "train.py", str(rank)) if alone else (*torchrun, "train.py")
            place = ("--nodes", ",".join(names), "--node-rank", str(rank), "--first-rank", str(rank))
            meet = ("--address", "127.0.0.1", "--port", str(agents), "--restarts", "2", *options)
            process = Popen(
                (sys.executable, "-P", "-m", "trainer.agent", *place, *meet, "--", *command),
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
    """Ranks after a restart on the same nodes, and after a resume with a node that is new to the run."""
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


PLAIN = """
import json, os, sys, time
rank = sys.argv[1]
began = os.path.exists("out/last.json")
print(f"finds {sorted(os.listdir('out')) if os.path.exists('out') else []}", flush=True)
if rank != "0" and not began and os.environ["ORCH_GENERATION"] != "1":
    sys.exit("RuntimeError: Connection closed by peer [127.0.0.1]:4532")
os.makedirs("out", exist_ok=True)
with open(f"out/__{rank}_0.distcp", "w") as file:
    file.write(rank * 9)
with open("out/log.txt", "a") as file:
    file.write(f"rank {rank}\\n" * (int(rank) + 1))
if rank == "0":
    with open("out/last.json", "w") as file:
        json.dump({"epoch": 3}, file)
    with open("out/hook.py", "w") as file:
        file.write("raise SystemExit")
if rank == "2" and os.environ.get("HOSTILE"):
    for name in ("train2.py", "json.py", "last.json", "run.sh"):
        with open(f"out/{name}", "w") as file:
            file.write("raise SystemExit")
    if not os.path.lexists("out/link.json"):
        os.symlink("/etc/passwd", "out/link.json")
print("saved", flush=True)
while not os.path.exists("enough"):
    time.sleep(0.05)
"""
RESTARTED = ("alpha", "beta", "gamma")


@pytest.fixture
def plain(cluster: Cluster) -> Cluster:
    cluster.script = PLAIN
    return cluster


def restart(plain: Cluster, *options: str) -> list[list[str]]:
    """Start all, kill the rank of beta when each has saved; the files that each rank finds at its second start."""
    plain.launch(*RESTARTED, options=options, alone=True)
    plain.until(lambda: all("saved" in node.lines for node in plain.nodes.values()))
    for pid in children(plain.nodes["beta"].process.pid):
        os.kill(pid, signal.SIGKILL)

    def found() -> list[list[str]]:
        lines = [[line for line in list(node.lines) if line.startswith("finds ")] for node in plain.nodes.values()]
        return [re.findall(r"'([^']+)'", each[1]) for each in lines if len(each) > 1]

    plain.until(lambda: len(found()) == len(RESTARTED))
    return found()


def test_files_of_rank_0_reach_the_others_and_their_own_stay(plain: Cluster) -> None:
    shards = [f"__{rank}_0.distcp" for rank in range(3)]
    found = restart(plain)
    assert found == [
        [shards[0], "hook.py", "last.json", "log.txt"],
        [shards[0], shards[1], "last.json", "log.txt"],
        [shards[0], shards[2], "last.json", "log.txt"],
    ]
    alpha = plain.nodes["alpha"]
    (missing,) = (event for event in alpha.events("outputs_missing") if not event["other_ranks"])
    assert (missing["nodes"], missing["source"], missing["more"]) == (["beta", "gamma"], "alpha", 1)
    others = [event for event in alpha.events("outputs_missing") if event["other_ranks"]]
    assert [(event["path"], event["why_not"]) for event in others] == [
        (f"out/{shard}", "other_ranks") for shard in shards[1:]
    ]
    (differs,) = alpha.events("outputs_differ")
    assert (differs["path"], differs["nodes"]) == ("out/log.txt", ["alpha", "beta"])
    (copied,) = plain.nodes["gamma"].events("outputs_copied")
    assert (copied["more"], copied["problem"]) == (2, "")
    assert (plain.folder("gamma") / "code/out/log.txt").read_text().startswith("rank 2")


def test_files_of_all_ranks_reach_all_nodes(plain: Cluster) -> None:
    results = [*(f"__{rank}_0.distcp" for rank in range(3)), "last.json", "log.txt"]
    found = restart(plain, "--sync-outputs", "all")
    assert [sorted({*each} - {"hook.py"}) for each in found] == [results] * 3
    assert "hook.py" not in found[1] + found[2]


def test_a_hostile_node_adds_nothing_that_runs_and_changes_no_file(
    plain: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds where files of all ranks are copied."""
    monkeypatch.setenv("HOSTILE", "1")
    found = restart(plain, "--sync-outputs", "all")
    shards = [f"__{rank}_0.distcp" for rank in range(3)]
    assert found[:2] == [[*shards, "hook.py", "last.json", "log.txt"], [*shards, "last.json", "log.txt"]]
    for name in ("alpha", "beta"):
        out = plain.folder(name) / "code/out"
        assert (out / "last.json").read_text() == '{"epoch": 3}'
        assert (out / "__2_0.distcp").read_text() == "2" * 9, [plain.nodes[n].lines for n in plain.nodes]
    (differs,) = plain.nodes["alpha"].events("outputs_differ")
    assert differs["more"] == 1  # last.json of gamma, and the log


def test_a_failure_after_a_start_with_different_files_names_the_file(plain: Cluster) -> None:
    restart(plain, "--sync-outputs", "off")
    alpha = plain.nodes["alpha"]
    plain.until(lambda: len(alpha.events("restarting")) == 2)
    again = alpha.events("restarting")[-1]
    assert again["cause"] == "start.files_differ"
    assert again["reason"].startswith("different files: out/")
    assert {event["why_not"] for event in alpha.events("outputs_missing") if event["other_ranks"] is False} == {"off"}
