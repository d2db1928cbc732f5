"""Jobs on a Slurm cluster of the lab, by a batch script written by hand: agents of the trainer under a scheduler."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lab.inventory import SHARED, WORKSPACE
from orchestrator.lab.slurm import this_python
from tests.lab.conftest import LAB, Orch

CLUSTER = f"{LAB}slurm"
NODES = ("alpha", "beta", "gamma")
ROOT = Path(__file__).parents[2]
PROJECT = f"{WORKSPACE}/lab"
TEXT = f"{PROJECT}/texto.txt"
IMAGE = "lab/jobs"
PASSED_ON = (
    "PYTHONPATH", "ORCH_RUN_ID", "ORCH_RUN_DIR", "ORCH_EVENTS", "ORCH_BACKEND", "ORCH_PG_TIMEOUT_S", "OMP_NUM_THREADS",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "OMP_WAIT_POLICY", "PYTHONUNBUFFERED", "SLURM_JOB_ID", "SLURM_JOB_NODELIST",
    "SLURM_NODEID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME",
)  # fmt: skip
"""Variables of a job that a container gets."""
LAST = 1_000_000
"""A step that no job reaches."""
EXACT = ("--sync", "fp32", "--shares", "equal", "--schedule", "constant", "--no-compile", "--no-amp", "--seed", "7")
MODEL = ("--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16", "--lr", "3e-3", "--batch-size", "2")
FOR_EVER = ("--max-steps", str(LAST), "--checkpoint-every", str(LAST), "--eval-every", "0")
OVER = ("", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
"""States of a job that has ended; empty: Slurm has forgotten it."""

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=orch:{run} --nodes={nodes} --ntasks-per-node=1 --cpus-per-task=2 --time={minutes}
#SBATCH --requeue --signal=B:USR1@90 --output={folder}/logs/batch.%j.log --open-mode=append
run={folder}
export PYTHONPATH={root} ORCH_RUN_ID={run} ORCH_RUN_DIR="$run" ORCH_EVENTS=1 ORCH_BACKEND=gloo ORCH_PG_TIMEOUT_S=60
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=60 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE GPUS_PER_NODE=1 PYTHONUNBUFFERED=1
cd {project}
srun --kill-on-bad-exit=0 --wait=0 --open-mode=append \\
    --output="$run/logs/%n.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}.log" {started} &
step=$!
again=
trap 'again=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
while :; do
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break
done
echo "srun ended with $code"
life="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
if [ -n "$again" ] && [ "$code" = 143 ] && [ "$(cat "$run/progressed")" = "$life" ]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 30
fi
exit "$code"
"""


def on(machine: str, *argv: str, user: str = "orch", check: bool = True, timeout_s: float = 60) -> str:
    """Output of a command on a machine of the cluster."""
    command = ("docker", "exec", "--user", user, f"orch-{CLUSTER}-{machine}", *argv)
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=timeout_s).stdout


def until(true: Callable[[], object], what: str, timeout_s: float) -> float:
    """Wait for a condition; the seconds that it took."""
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < timeout_s, f"{what} did not come within {timeout_s:.0f} s"
        time.sleep(0.2)
    return time.monotonic() - begin


def idle() -> bool:
    """Whether all nodes are free."""
    states = on("login", "sinfo", "--noheader", "--Node", "--format", "%T").split()
    return states == ["idle"] * len(NODES)


@dataclass(frozen=True)
class Job:
    """A job that was submitted, with its run's folder on the shared storage."""

    id: str
    folder: str

    @property
    def state(self) -> str:
        return on(
            "login", "squeue", "--noheader", "--states", "all", "--job", self.id, "--format", "%T", check=False
        ).strip()

    def read(self, name: str) -> str:
        return on("login", "cat", f"{self.folder}/{name}", check=False)

    def lines(self, rank: int = 0, life: int = 0) -> list[str]:
        """What a node's agent and its ranks have written, each line with its time."""
        return self.read(f"logs/{rank}.{self.id}.{life}.log").splitlines()

    def events(self, kind: str, life: int = 0, rank: int = 0) -> list[dict[str, Any]]:
        found = [line.partition("@orch ")[2] for line in self.lines(rank, life) if f'"event": "{kind}"' in line]
        return [json.loads(text) for text in found if text]

    def steps(self) -> list[int]:
        """Steps of the run's checkpoints, each verified."""
        names = on("login", "ls", f"{self.folder}/checkpoints", check=False).split()
        return sorted(int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-[0-9]{8}", name))

    def wait_for_steps(self, life: int = 0) -> None:
        until(lambda: self.events("step", life) or self.state in OVER, "the first step", 90)
        assert self.events("step", life), self.report()

    def report(self) -> str:
        return "\n".join((self.state, self.read(f"logs/batch.{self.id}.log"), *self.lines()[-30:]))


def submit(run: str, *words: str, minutes: int = 10, in_containers: bool = False) -> Job:
    """Submit a job that trains GPT-2 on all nodes, as processes or in containers of the nodes' engines."""
    folder = f"{PROJECT}/runs/{run}"
    started: tuple[str, ...] = (
        sys.executable, "-P", "-m", "trainer.agent", "--place", "slurm", "--port", "20000", "--stamp-lines",
        *(("--end-with-stdin",) if in_containers else ()),
        "--", "torchrun", "--nnodes", str(len(NODES)), "--nproc-per-node", "1", "--rdzv-id", run, "--max-restarts", "0",
        "-m", "trainer", "gpt2", "train", *MODEL, *EXACT, "--log-every", "1", "--run-dir", folder, *words,
    )  # fmt: skip
    if in_containers:  # its standard input ends with the docker CLI, and not before
        words_of_docker = (*docker_run(run), *started)
        started = ("bash", "-c", 'exec "$@" < <(exec sleep infinity)', "orch", *words_of_docker)
    script = SCRIPT.format(
        run=run, nodes=len(NODES), minutes=minutes, folder=folder, root=ROOT, project=PROJECT,
        started=shlex.join(started),
    )  # fmt: skip
    prepare = f"umask 077; mkdir -p {folder}/logs; printf %s {'ab' * 32} > {folder}/agents.token; sbatch --parsable"
    command = ("docker", "exec", "--interactive", "--user", "orch", f"orch-{CLUSTER}-login", "sh", "-c", prepare)
    ended = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return Job(ended.stdout.strip(), folder)


def docker_run(run: str) -> tuple[str, ...]:
    """Words before a command that is to run in a container, with the Python of the cluster and its shared folder."""
    shown = (word for one in this_python().folders for word in ("--volume", f"{one}:{one}:ro"))
    passed = (word for name in PASSED_ON for word in ("--env", name))
    return (
        "docker", "run", "--rm", "--interactive", "--init", "--network", "host", "--user", "1000:1000",
        "--label", f"orch.run_id={run}", "--volume", f"{SHARED}:{SHARED}", *shown, *passed, "--env", "HOME=/tmp",
        "--workdir", PROJECT, IMAGE,
    )  # fmt: skip


def make_image(machine: str) -> None:
    """Give a node's engine an image: the libraries of the machine itself, for the Python that it sees."""
    left_out = " ".join(f"--exclude './{path}'" for path in ("usr/share", "usr/sbin", "var", "usr/bin/*docker*"))
    script = f"tar --create --one-file-system --directory / {left_out} . | docker import - {IMAGE}"
    on(machine, "sh", "-c", f"docker image inspect {IMAGE} > /dev/null 2>&1 || {script}", user="root", timeout_s=300)


def containers() -> dict[str, list[str]]:
    """Ids of the containers on each node that has any."""
    found = {name: on(name, "docker", "ps", "--quiet").split() for name in NODES}
    return {name: ids for name, ids in found.items() if ids}


def _kill_clients(_job: Job) -> None:
    for name in NODES:
        on(name, "pkill", "-KILL", "-f", "^docker run")


KILLS: Mapping[str, Callable[[Job], object]] = {
    "scancel": lambda job: on("login", "scancel", job.id),
    "scancel --signal=KILL --full": lambda job: on("login", "scancel", "--signal=KILL", "--full", job.id),
    "killed docker CLI": _kill_clients,
}
"""Ends of a job in containers."""


@contextmanager
def a_cluster(folder: Path, figure: Callable[[str], None]) -> Iterator[Orch]:
    """A cluster of three nodes with data for GPT-2; skipped where Debian's packages cannot be had."""
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
        text = "\n".join(f"en el principio era la palabra {one} y con ella vino toda cosa {one}" for one in range(600))
        where = ("--text", TEXT, "--data-dir", f"{PROJECT}/Data")
        data = shlex.join((sys.executable, "-m", "trainer", "gpt2", "prepare", *where, "--vocab-size", "300"))
        make = f"mkdir -p {PROJECT} && cat > {TEXT} && PYTHONPATH={ROOT} {data}"
        done = subprocess.run(
            ("docker", "exec", "--interactive", "--user", "orch", f"orch-{CLUSTER}-login", "sh", "-c", make),
            input=text, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        yield command
    finally:
        down = command("lab", "down", "--yes")
        assert down.code == 0, down.err
