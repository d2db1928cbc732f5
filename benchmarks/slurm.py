"""Runs by `orch launch --on` on a Slurm lab: what a start costs, and what a stop, a kill or a lost node loses.

    python -m benchmarks.slurm --starts 5 --stops 10 --kills 20 --lost 1

Start a cluster of three nodes, and remove it at the end. The exit code is 1 if one was not good.

A start alternates with a bare one: `sbatch` of a script with `srun torchrun`, the same command and the same variables,
without agents. It is good if the agents' first word comes within 3 s of the command; the ratio of the medians of the
times to the first step is printed. A stop is a plain `scancel` at a random moment: good if there is a checkpoint of the
step that ran, all nodes are free within 30 s, and `orch status` says stopped. A kill ends a job that trains in
containers by `scancel`, `scancel --signal=KILL --full`, a killed slurmstepd or a killed docker CLI: good if every
container has ended before Slurm first calls its node idle. A lost node loses its power and comes back: good if the next
attempt continues from the newest checkpoint, and `orch why` names the node. See ADR 50.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.lab.conftest import Orch
from tests.lab.slurm_jobs import (
    CLUSTER,
    FOR_EVER,
    GPT2,
    KILLS,
    LAST,
    NODES,
    PROJECT,
    Run,
    a_cluster,
    containers,
    idle,
    launch,
    make_image,
    node_states,
    on,
    until,
)

FREE_S, FIRST_WORD_S, LONG_S = 30.0, 3.0, 10.0
MOST_WAIT_S = 3.0
"""A job is ended at a random moment in this time after its first step."""
BARE = """\
#!/bin/bash
#SBATCH --job-name=bare --nodes={nodes} --ntasks-per-node=1 --cpus-per-task={cpus} --output=/dev/null
cd {project}
export {variables}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(getent ahostsv4 "$first" | awk 'NR == 1 {{print $1}}')
srun --output={folder}/%n.log bash -c {started}
"""
"""Script without agents; each task finds its rank by torchrun's own `--node-rank`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("starts", 5), ("stops", 10), ("kills", 20), ("lost", 1)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    good = 0
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, a_cluster(Path(folder), say) as orch:
        starts = Starts(orch)
        for number in range(given.starts):
            good += _good(f"start {number}", starts.pair)
        starts.report()
        for number in range(given.stops):
            good += _good(f"stop {number}", lambda run: stop(orch, run))
        for number in range(given.lost):
            good += _good(f"lost {number}", lambda run: lose(orch, run))
        for name in NODES if given.kills else ():
            make_image(name)
        for number in range(given.kills):
            how = list(KILLS)[number % len(KILLS)]
            good += _good(f"kill {number}", lambda run, how=how: kill(orch, run, how))
    tried = given.starts + given.stops + given.kills + given.lost
    say(f"{good} of {tried} good")
    return int(good < tried)


def _good(name: str, act: Callable[[str], str]) -> bool:
    try:
        say(f"{name}: {act(name.replace(' ', '-'))}")
    except AssertionError as error:
        say(f"{name}: BAD: {error}")
        until(idle, "free nodes", 120)
        return False
    return True


class Starts:
    """Starts by orch and bare ones, in turn; times in seconds from the command."""

    def __init__(self, orch: Orch) -> None:
        self._orch = orch
        self._words, self._bare, self._ours = list[float](), list[float](), list[float]()

    def pair(self, name: str) -> str:
        """AssertionError: the first word of an agent came late."""
        until(idle, "free nodes", 60)
        begin = time.time()
        run = launch(self._orch, name, *GPT2, "--max-steps", "20", "--checkpoint-every", str(LAST))
        run.wait_for_steps()
        word = datetime.fromisoformat(run.lines()[0].split()[0][:26] + "+00:00").timestamp() - begin
        ours = run.events("step")[0]["ended_at"] - begin
        until(run.has_ended, "the end", 60)
        until(idle, "free nodes", 60)
        bare = self._start_bare(name, run)
        self._words.append(word)
        self._ours.append(ours)
        self._bare.append(bare)
        text = f"first word {word:.2f} s, first step {ours:.2f} s; bare {bare:.2f} s"
        require(word <= FIRST_WORD_S, text)
        return text

    def _start_bare(self, name: str, run: Run) -> float:
        script = _bare_script(run, folder := f"{PROJECT}/bare/{name}")
        prepare = f"mkdir -p {folder} && cat > {folder}/job && exec sbatch --parsable {folder}/job"
        begin = time.time()
        subprocess.run(
            ("docker", "exec", "--interactive", "--user", "orch", f"orch-{CLUSTER}-login", "sh", "-c", prepare),
            input=script, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        file, mark = f"{folder}/0.log", '"event": "step"'
        until(lambda: mark in on("login", "cat", file, check=False), "the first bare step", 90)
        line = next(line for line in on("login", "cat", file).splitlines() if mark in line)
        until(idle, "free nodes", 60)
        return float(json.loads(line.partition("@orch ")[2])["ended_at"]) - begin

    def report(self) -> None:
        if self._ours:
            ours, bare = statistics.median(self._ours), statistics.median(self._bare)
            say(f"first word of an agent: {_spread(self._words)}")
            say(f"first step: orch {_spread(self._ours)}, bare {_spread(self._bare)}, ratio {ours / bare:.2f}")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s (median; {min(values):.2f} to {max(values):.2f})"


def _bare_script(run: Run, folder: str) -> str:
    """The command of a run's job without its agents: torchrun's words and variables, bound by the shell."""
    script = run.read("job-0.sbatch")
    words = shlex.split(script[script.index("\nset -- ") + 8 : script.index("\nrun=$1\n")])
    python = next(place for place, word in enumerate(words) if word.endswith(("/python", "/python3")))
    variables = [word for word in words[words.index("env") + 3 : python] if not word.startswith("ORCH_RUN")]
    torchrun = words[words.index("torchrun") + 1 :]
    agent = words[python + 2].partition("['")[2].partition("'")[0]
    begin = shlex.join((words[python], "-m", "torch.distributed.run", "--master-port", "29517"))
    bound = '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR"'
    started = shlex.quote(f"exec {begin} {bound} {shlex.join(torchrun)}")
    return BARE.format(
        nodes=len(NODES), cpus=2, project=PROJECT, folder=folder,
        variables=shlex.join((f"PYTHONPATH={agent}", *variables, f"ORCH_RUN_DIR={folder}", "ORCH_EVENTS=1")),
        started=started,
    )  # fmt: skip


def stop(orch: Orch, name: str) -> str:
    """Cancel a job of processes. AssertionError: a step is lost, a node not free, or the run not stopped."""
    run, waited_s = _running(orch, name, in_containers=False)
    on("login", "scancel", run.job)
    free_s = until(idle, "free nodes", FREE_S)
    (stopped,) = run.events("stopped")
    require(run.checkpoints()[-1:] == [stopped["step"]], run.report())
    require(run.state() == "stopped", run.state())
    return f"after {waited_s:.1f} s: checkpoint of step {stopped['step']}, nodes free {free_s:.1f} s later"


def kill(orch: Orch, name: str, how: str) -> str:
    """Kill a job of containers. AssertionError: a container ended after its node was idle, or not at all."""
    run, _ = _running(orch, name, in_containers=True)
    begin = time.time()
    KILLS[how](run)
    free = _first_idle(run)
    ended = {node: _end_of_container(node, begin) for node in NODES}
    early = min(free[node] - ended[node] for node in NODES)
    saved = f"checkpoint of step {run.checkpoints()[-1]}" if run.checkpoints() else "no checkpoint"
    text = f"{how}: nodes free after {max(free.values()) - begin:.1f} s, containers gone {early:.2f} s before, {saved}"
    require(early >= 0, text)
    return text


def _first_idle(run: Run) -> dict[str, float]:
    """The times at which Slurm first called each node idle: those before it was asked. Slurm takes 100 s to see that a
    slurmstepd was killed; a job whose containers have ended is cancelled after 10 s."""
    free, begin, cancelled = dict[str, float](), time.time(), False
    while len(free) < len(NODES):
        asked = time.time()
        for node, state in node_states().items():
            if state == "idle":
                free.setdefault(node, asked)
        if not free and not cancelled and asked - begin > LONG_S and not containers():
            on("login", "scancel", run.job)
            cancelled = True
        require(asked - begin < 120, f"nodes not free: {node_states()}")
    return free


def _end_of_container(node: str, since: float) -> float:
    """The time at which the newest container of a node ended, by its engine. AssertionError: it has not within 60 s."""
    deadline = time.time() + 60
    while True:
        words = ("--since", f"{since:.3f}", "--until", f"{time.time():.3f}", "--filter", "event=die")
        if lines := on(node, "docker", "events", *words, "--format", "{{.TimeNano}}").split():
            return int(lines[-1]) / 1e9
        require(time.time() < deadline, f"a container of {node} runs on")
        time.sleep(0.5)


def lose(orch: Orch, name: str) -> str:
    """Cut the power of a node. AssertionError: the run does not continue, or `orch why` does not name the node."""
    run = launch(orch, name, *GPT2, "--max-steps", str(LAST), "--checkpoint-every", "100")
    until(lambda: run.events("checkpoint"), "the first checkpoint", 90)
    victim = NODES[1]
    begin = time.monotonic()
    require(orch("lab", "kill", victim).code == 0, "orch lab kill")
    until(lambda: "PENDING" in on("login", "squeue", "-h", "-j", run.job, "-o", "%T"), "the queue", 120)
    queued_s = time.monotonic() - begin
    why = orch("why", run.id).out
    newest = run.checkpoints()[-1]
    require(orch("lab", "start", victim).code == 0, "orch lab start")
    back = time.monotonic()
    run.wait_for_steps(life=1)
    (resumed,) = run.events("resumed", 1)
    require(resumed["step"] == newest, f"resumed at {resumed['step']}, newest was {newest}")
    text = f"queued again after {queued_s:.0f} s, step {newest + 1} {time.monotonic() - back:.0f} s after its return"
    require(orch("stop", run.id).code == 0, "orch stop")
    require(f"{victim}: its connection ended" in why, f"{text}\n{why}")
    return text


def _running(orch: Orch, name: str, *, in_containers: bool) -> tuple[Run, float]:
    run = launch(orch, name, *FOR_EVER, in_containers=in_containers)
    run.wait_for_steps()
    wait_s = random.uniform(0, MOST_WAIT_S)  # noqa: S311  # no secret
    time.sleep(wait_s)
    return run, wait_s


def require(true: bool, text: str) -> None:
    """AssertionError: it is not true."""
    if not true:
        raise AssertionError(text)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
