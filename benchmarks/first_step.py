"""Time from the command to the first step of a run, relative to `torchrun` typed by hand on each node at once.

Needs a running lab with the image (`orch lab up --nodes 5`, `orch build`), in a folder without an inventory of its own.
By hand: `ssh NODE docker run … torchrun …` on all nodes in parallel, with the same limits, image and torchrun words and
the script on stdin, which need not be copied before. The two are interleaved, A B A B; the result is the median of
the ratios of all pairs. `--trainer` measures a workload of the trainer instead, with the data of this folder (`orch
prepare`) and the times of its phases: the first start measures the methods, the others use that where it still holds.

    python -m benchmarks.first_step [--rounds 5] [--trainer]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.launch_overhead import ssh_words
from orchestrator.cli.context import load_inventory
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.plan_json import from_json

ORCH = (sys.executable, "-m", "orchestrator")
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 31):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print("STEP", step, flush=True)
dist.destroy_process_group()
"""
WORKLOAD = ("gpt2", "--preset", "lab", "--max-steps", "2000")
HAND_PORT = "12399"
"""The containers of a run that has just ended may not have closed its port yet."""
PHASE = re.compile(r"✓ (.+?): .*\((\d+\.\d) s\)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trainer", action="store_true")
    options = parser.parse_args()
    specs = {spec.name: spec for spec in load_inventory(None).inventory.nodes}
    if options.trainer:
        for _ in range(options.rounds):
            print(f"load {os.getloadavg()[0]:.1f}: {_trainer(len(specs))}", flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        ours, hand = [], []
        for _ in range(options.rounds):
            load = os.getloadavg()[0]
            ours.append(_launched(folder, len(specs)))
            hand.append(_by_hand(_plan(folder, len(specs)), specs))
            print(f"load {load:.1f}: orch launch {ours[-1]:.1f} s, by hand {hand[-1]:.1f} s", flush=True)
    ratios = [own / other for own, other in zip(ours, hand, strict=True)]
    for name, values in (("orch launch", ours), ("torchrun by hand", hand), ("ratio", ratios)):
        print(f"{name:<17} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    return 0


def _plan(folder: str, nodes: int) -> Plan:
    line = (*ORCH, "launch", "--nodes", str(nodes), "--dry-run", "--json", "--", "python", "train.py")
    text = subprocess.run(line, cwd=folder, capture_output=True, check=True).stdout
    return from_json(json.dumps(json.loads(text)["data"]), where="--dry-run")


def _launched(folder: str, nodes: int) -> float:
    """Return the seconds until the line of the first step has arrived; wait for the end of the run."""
    line = (*ORCH, "launch", "--nodes", str(nodes), "--yes", "--", "python", "train.py")
    began = time.monotonic()
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        return _until(process, "STEP 1\n", began)


def _trainer(nodes: int) -> Mapping[str, float]:
    """Return the seconds from the command to the end of each phase; the run is stopped after its first step."""
    line = (*ORCH, "launch", "--nodes", str(nodes), "--yes", "--name", "measured", "--", *WORKLOAD)
    phases: dict[str, float] = {}
    began = time.monotonic()
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for text in process.stdout or ():
            if found := PHASE.search(text):
                phases[found[1]] = round(time.monotonic() - began, 1)
            if "first step" in text:
                subprocess.run((*ORCH, "stop", "measured", "--timeout", "0", "--yes"), capture_output=True)
    return phases


def _by_hand(plan: Plan, specs: Mapping[str, NodeSpec]) -> float:
    began = time.monotonic()
    processes = [_started(part, ssh_words(specs[part.node])) for part in plan.nodes]
    seconds = _until(processes[0], "STEP 1\n", began)
    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(lambda process: process.communicate(), processes))
    return seconds


def _started(part: NodePlan, ssh: Sequence[str]) -> subprocess.Popen[str]:
    container = part.container
    torchrun = [*container.command[container.command.index("torchrun") :]]
    torchrun[torchrun.index("--master-port") + 1] = HAND_PORT
    variables = [f"--env={name}={container.environment[name]}" for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")]
    limits = ("--network", "host", f"--cpus={container.cpus}", "--memory", f"{container.memory_mib}m")
    words = ("docker", "run", "--rm", "-i", *limits, *variables, "--entrypoint", "")
    inside = ("sh", "-c", f"cd; cat >train.py; exec {shlex.join(torchrun)}")
    process = subprocess.Popen(
        (*ssh, shlex.join((*words, container.image, *inside))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if process.stdin:
        with process.stdin as stdin:
            stdin.write(SCRIPT)
        process.stdin = None
    return process


def _until(process: subprocess.Popen[str], end: str, began: float) -> float:
    """Return the seconds until a line ends so; read all others too."""
    seconds = 0.0
    for line in process.stdout or ():
        if line.endswith(end) and not seconds:
            seconds = time.monotonic() - began
    if not seconds:
        raise SystemExit("no step was seen")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
