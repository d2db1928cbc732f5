"""Runs on a Slurm cluster of the lab, launched by the command line, and what is to be known of their jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lab.inventory import URGENT, WORKSPACE
from orchestrator.lab.slurm import this_python
from orchestrator.specs.inventory_files.inventory_yaml import write_yaml
from tests.lab.conftest import LAB, Orch

CLUSTER = f"{LAB}slurm"
NODES = ("alpha", "beta", "gamma")
ROOT = Path(__file__).parents[2]
PROJECT = f"{WORKSPACE}/lab"
IMAGE = "lab/jobs:1"
DATA, IN_CONTAINERS, PROCESSES = "data", "containers.yaml", "processes.yaml"
"""Files beside the commands: prepared text, an inventory with the cluster whose jobs start containers, and one of nodes
that are processes."""
LAST = 1_000_000
"""A step that no job reaches."""
EXACT = ("--sync", "fp32", "--shares", "equal", "--schedule", "constant", "--no-compile", "--no-amp", "--seed", "7")
MODEL = ("--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16", "--lr", "3e-3", "--batch-size", "2")
GPT2 = ("gpt2", *MODEL, *EXACT, "--log-every", "1", "--eval-every", "0")
FOR_EVER = (*GPT2, "--max-steps", str(LAST), "--checkpoint-every", str(LAST))


def on(machine: str, *argv: str, user: str = "orch", check: bool = True, timeout_s: float = 60) -> str:
    """Output of a command on a machine of the cluster."""
    command = ("docker", "exec", "--user", user, f"orch-{CLUSTER}-{machine}", *argv)
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=timeout_s).stdout


def until(true: Callable[[], object], what: str, timeout_s: float, every_s: float = 0.2) -> float:
    """Wait for a condition; the seconds that it took."""
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < timeout_s, f"{what} did not come within {timeout_s:.0f} s"
        time.sleep(every_s)
    return time.monotonic() - begin


def node_states() -> dict[str, str]:
    """The state of each node by Slurm."""
    return dict(line.split() for line in on("login", "sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T").splitlines())


def idle() -> bool:
    """Return whether all nodes are free."""
    return set(node_states().values()) == {"idle"}


@dataclass(frozen=True)
class Run:
    """A run on the cluster, with its job and its folder on the shared storage."""

    orch: Orch
    id: str
    job: str

    @property
    def folder(self) -> str:
        return f"{PROJECT}/runs/{self.id}"

    def state(self) -> str:
        """The state by `orch status`."""
        return str(self.orch("status", self.id, "--json").json["state"])

    def read(self, name: str) -> str:
        return on("login", "cat", f"{self.folder}/{name}", check=False)

    def lines(self, rank: int = 0, life: int = 0) -> list[str]:
        """Read what a node's agent and its ranks have written, each line with its time."""
        return self.read(f"logs/{rank}.{self.job}.{life}.log").splitlines()

    def events(self, kind: str, life: int = 0, rank: int = 0) -> list[dict[str, Any]]:
        found = [line.partition("@orch ")[2] for line in self.lines(rank, life) if f'"event": "{kind}"' in line]
        return [json.loads(text) for text in found if text]

    def checkpoints(self) -> list[int]:
        """Steps of the run's checkpoints, each verified."""
        names = on("login", "ls", f"{self.folder}/checkpoints", check=False).split()
        return sorted(int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-[0-9]{8}", name))

    def has_ended(self, life: int = 0) -> bool:
        """Return whether the batch script of this life has noted its end."""
        return bool(self.read(f"ended.{self.job}.{life}"))

    def wait_for_steps(self, life: int = 0) -> None:
        until(lambda: self.events("step", life) or self.has_ended(life), "the first step", 240)
        assert self.events("step", life), self.report()

    def report(self) -> str:
        return "\n".join((self.read(f"logs/batch.{self.job}.log"), *self.lines()[-30:]))


def mounts() -> tuple[str, ...]:
    """Options of a run in containers: the folders with this Python and its libraries."""
    return tuple(word for path in this_python().folders for word in ("--mount", f"{path}:{path}:ro"))


def launch(orch: Orch, name: str, *command: str, options: tuple[str, ...] = (), in_containers: bool = False) -> Run:
    """Launch on all nodes of the cluster, and leave the run there."""
    orch = by(orch, IN_CONTAINERS) if in_containers else orch
    if in_containers:
        options = (*options, *mounts())
    started = ("--yes", "--detach", "--json", "--name", name, *options, "--", *command)
    done = orch("launch", "--on", "lab", "--nodes", str(len(NODES)), "--data", DATA, *started)
    assert done.code == 0, done.err
    return Run(orch, done.json["run_id"], done.json["job"])


def by(orch: Orch, inventory: str) -> Orch:
    """The same command with another inventory of its folder."""
    return replace(orch, environment={**orch.environment, "ORCH_INVENTORY": str(orch.folder / inventory)})


def losses(orch: Orch, run: str) -> dict[int, float]:
    """Loss by step, as `orch logs` has it."""
    done = orch("logs", run, "--json")
    assert done.code == 0, done.err
    events = [line["event"] for line in map(json.loads, done.out.splitlines()) if line.get("event")]
    return {event["step"]: event["loss"] for event in events if event["kind"] == "step"}


def preempt() -> str:
    """Submit a job that takes the nodes from all others for a moment; its id."""
    options = (f"--partition={URGENT}", f"--nodes={len(NODES)}", "--exclusive", "--output=/dev/null")
    return on("login", "sbatch", "--parsable", *options, "--wrap=sleep 1").strip()


def make_image(machine: str) -> None:
    """Give a node's engine an image: the libraries of the machine itself, for the Python that it sees."""
    left_out = " ".join(f"--exclude './{path}'" for path in ("usr/share", "usr/sbin", "var", "usr/bin/*docker*"))
    path = f"ENV PATH={Path(sys.executable).parent}:/usr/bin:/bin"
    script = f"tar --create --one-file-system --directory / {left_out} . | docker import --change '{path}' - {IMAGE}"
    on(machine, "sh", "-c", f"docker image inspect {IMAGE} > /dev/null 2>&1 || {script}", user="root", timeout_s=300)


def containers() -> dict[str, list[str]]:
    """Ids of the containers on each node that has any."""
    found = {name: on(name, "docker", "ps", "--quiet").split() for name in NODES}
    return {name: ids for name, ids in found.items() if ids}


def _kill_on_all(pattern: str) -> None:
    for name in NODES:
        on(name, "pkill", "-KILL", "-f", pattern, user="root")


KILLS: Mapping[str, Callable[[Run], object]] = {
    "scancel": lambda run: on("login", "scancel", run.job),
    "scancel --signal=KILL --full": lambda run: on("login", "scancel", "--signal=KILL", "--full", run.job),
    "killed docker CLI": lambda _run: _kill_on_all("^docker run"),
    "killed slurmstepd": lambda run: _kill_on_all(rf"^slurmstepd: \[{run.job}\.0\]"),
}
"""Ends of a job in containers."""


@contextmanager
def a_cluster(folder: Path, figure: Callable[[str], None]) -> Iterator[Orch]:
    """A cluster of three nodes, text for GPT-2 and inventories in this folder; skipped where Debian's packages cannot
    be had."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    environment.pop("ORCH_INVENTORY", None)
    command = Orch(folder, environment)
    assert command("lab", "down", "--yes", "--name", CLUSTER).code == 0
    try:
        up = command("lab", "up", "--engine", "slurm", "--nodes", str(len(NODES)), "--name", CLUSTER, timeout_s=900)
        if "building the node image failed" in up.err and "apt-get" in up.err:
            pytest.skip(f"Debian's packages cannot be had: {up.err[-300:]}")
        assert up.code == 0, up.err
        figure(f"orch lab up --engine slurm: {up.seconds:.0f} s")
        _prepare(folder)
        _write_inventories(folder)
        yield command
    finally:
        down = command("lab", "down", "--yes")
        assert down.code == 0, down.err


def _prepare(folder: Path) -> None:
    text = "\n".join(f"en el principio era la palabra {one} y con ella vino toda cosa {one}" for one in range(600))
    (folder / "text.txt").write_text(text)
    where = ("--text", str(folder / "text.txt"), "--data-dir", str(folder / DATA))
    subprocess.run(
        (sys.executable, "-m", "trainer", "gpt2", "prepare", *where, "--vocab-size", "300"),
        cwd=ROOT, capture_output=True, check=True, timeout=120,
    )  # fmt: skip


def _write_inventories(folder: Path) -> None:
    """The lab's cluster with containers, and three nodes that are processes of this computer."""
    from ruamel.yaml import YAML

    whole = YAML(typ="safe").load((folder / "state" / "orch" / "lab" / "inventory.yaml").read_text())
    cluster = whole["clusters"]["lab"]
    contained = {**whole, "clusters": {"lab": {**cluster, "container": "docker", "image": IMAGE}}}
    (folder / IN_CONTAINERS).write_text(write_yaml(contained, header=""))
    nodes = {
        name: {"address": f"127.0.0.{number}", "workspace": str(folder / name)}
        for number, name in enumerate(NODES, start=11)
    }
    limits = {"cpus": float(cluster["cpus"]), "memory": cluster["memory"]}
    defaults = {"connection": "local", "engine": "process", "limits": limits}
    text = write_yaml({"project": "lab", "defaults": defaults, "nodes": nodes}, header="")
    (folder / PROCESSES).write_text(text)
