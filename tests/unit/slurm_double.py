"""`orch` on a cluster of the double of Slurm: its commands and the batch script are real processes of this
computer; a stand-in takes the place of the agent."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.fleet.connect import connect
from orchestrator.nodes.fake import FakeNode
from tests import fake_slurm
from tests.json_output import json_data
from tests.unit.conftest import Orch, Ran

AGENT = """#!{python}
import json, os, signal, sys, time
from datetime import datetime, timezone
words = sys.argv
folder, base = (words[words.index(option) + 1] for option in ("--place-folder", "--attempt-base"))
rank, restart = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT", 0))
job, names = os.environ["SLURM_JOB_ID"], os.environ["SLURM_JOB_NODELIST"].split(",")
attempt, mode, steps = int(base) + restart, os.environ.get("MODE", ""), int(os.environ.get("STEPS", "2"))
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
def say(text):
    print(datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), text, flush=True)
def event(kind, **values):
    common = dict(t=time.time(), node=names[rank], node_rank=rank, generation=1) | values
    say("@orch " + json.dumps(dict(event=kind, **common)))
if mode == "no place":
    say("error: it could not start"); sys.exit(3)
if rank == 0:
    place = dict(attempt=attempt, job=job, restart=restart, names=names, addresses=["10.0.0.1"], at=time.time())
    with open(folder + "/.place", "w") as file:
        file.write(json.dumps(place))
    os.replace(folder + "/.place", folder + f"/place-{{attempt}}.json")
told = os.path.join(os.path.dirname(words[0]), "told")
if rank == 0 and os.path.exists(told):
    for line in open(told):
        say(line.rstrip())
say(f"[rank{{rank}}]: hello of attempt {{attempt}} from {{names[rank]}}: {{words[-1]}}")
for step in range(1, steps + 1):
    if rank == 0:
        times = dict(compute_s=dict.fromkeys(names, 0.1) | {{names[-1]: 0.3}}) if mode == "slow" else {{}}
        say("[rank0]: @orch " + json.dumps(dict(event="step", rank=0, step=step, loss=1.0, final_step=steps, **times)))
    if mode == "raise" and step == 2:
        if rank == 1:
            say("[rank1]: Traceback (most recent call last):")
            say('[rank1]:   File "train.py", line 3, in <module>')
            say("[rank1]: ValueError: boom")
        time.sleep(0.2)
        event("finished", node=names[1], outcome="user", rank=1, exit_code=1, reason="ValueError: boom")
        sys.exit(1)
    if mode == "no gpu" and step == 2:
        event("finished", node=names[1], outcome="configuration", rank=1, exit_code=1, reason="x", cause="gpu.none")
        sys.exit(1)
    if asked:
        if rank == 0 and mode != "no checkpoint":
            say("[rank0]: @orch " + json.dumps(dict(event="checkpoint", rank=0, step=step, verified=True, path="x")))
            with open(folder + "/progressed", "w") as file:
                file.write(f"{{job}}.{{restart}}\\\\n")
        event("finished", outcome="stopped")
        sys.exit(143)
    time.sleep(0.05)
if mode == "lost":
    sys.exit(0)
event("finished", outcome="done")
if rank == 0:
    with open(folder + "/left", "w") as file:
        file.write(f"{{job}}.{{restart}} 0\\\\n")
"""


class Cluster:
    """The double, an inventory with it, and `orch` on both."""

    def __init__(self, orch: Orch, folder: Path) -> None:
        self._orch, self.folder = orch, folder
        self.state, self.workspace = folder / "slurm" / "state", folder / "shared"
        self.machines: dict[str, FakeNode] = {}
        """Machines of the inventory beside the cluster."""
        agent = folder / "python3"
        agent.write_text(AGENT.format(python=os.path.realpath("/proc/self/exe")).replace("\\\\n", "\\n"))
        agent.chmod(0o755)
        self.data = self.workspace / "orch" / "Data"
        self.data.mkdir(parents=True)
        (self.data / "manifest.json").touch()
        self.keys: dict[str, Any] = {"login": "local", "workspace": str(self.workspace), "python": str(agent)}
        self.write()

    def write(self, **keys: Any) -> None:
        Path("inventory.yaml").write_text(json.dumps({"clusters": {"uni": {**self.keys, **keys}}}))

    def tell(self, *lines: str) -> None:
        """Lines that rank 0 of each run writes."""
        (self.folder / "told").write_text("".join(f"{line}\n" for line in lines))

    def connect(self, spec: Any) -> Any:
        return self.machines.get(spec.name) or connect(spec)

    def __call__(self, *words: str) -> Ran:
        return self._orch(*words, on=self)

    def launch(self, *words: str, nodes: int = 2, **variables: str) -> Ran:
        given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        return self("launch", "--on", "uni", "--nodes", str(nodes), "--name", "t", *given, *words, "--", "gpt2")

    def start(self, **variables: str) -> str:
        """Launch and leave a run, once its agents have begun; its id."""
        run = str(json_data(self.launch("--detach", "--json", **variables).out)["run_id"])
        # A signal reaches the ranks only once srun has noted them, all of them.
        until(lambda: list(self.run_folder(run).glob("place-*.json")) and self.job()["steps"])
        return run

    def run_folder(self, run: str) -> Path:
        return self.workspace / "orch" / "runs" / run

    def job(self, number: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / f"{number}.json").read_text())
        return found

    def status(self, run: str) -> dict[str, Any]:
        return dict(json_data(self("status", run, "--json").out))


def until(ready: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def uni(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    programs = fake_slurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("USER", "ana")
    cluster = Cluster(orch, tmp_path)
    yield cluster
    for file in cluster.state.glob("[0-9]*.json"):  # no process outlives its test
        values = json.loads(file.read_text())
        fake_slurm.send([*values["steps"], *([values["batch"]] if values["batch"] else [])], signal.SIGKILL)


def around_sbatch(uni: Cluster, text: str) -> None:
    """A site's own program in the place of sbatch, which is called `"$sbatch" "$@"` in it."""
    sbatch = uni.folder / "slurm" / "bin" / "sbatch"
    sbatch.rename(sbatch.with_name("sbatch.real"))
    sbatch.write_text(f"#!/bin/sh\nsbatch={sbatch}.real\n{text}\n")
    sbatch.chmod(0o755)
