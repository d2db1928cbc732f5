"""Time of `orch launch` until all containers are started, relative to a parallel `ssh NODE docker run` of the same.

Needs a running lab with the image (`orch lab up --nodes 5`, `orch build`). The two are interleaved, A B A B; the result
is the median of the ratios of all pairs.

    python -m benchmarks.launch_overhead [--pairs 7]
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from orchestrator.cli.context import load_inventory
from orchestrator.nodes.host_keys import known_files
from orchestrator.plan.lines import run_words
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json

ORCH = (sys.executable, "-m", "orchestrator")
COMMAND = ("--", "test-ddp", "--backend", "gloo")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    pairs = parser.parse_args().pairs
    specs = {spec.name: spec for spec in load_inventory(None).inventory.nodes}
    plan = _plan()
    ratios, ours, bare = [], [], []
    for number in range(pairs + 1):  # the first pair warms up caches and is not counted
        a, b = _launch(specs), _bare(plan, specs)
        if number:
            ours.append(a)
            bare.append(b)
            ratios.append(a / b)
    print(f"{len(specs)} nodes, {pairs} pairs; seconds, median (min to max)")
    for name, values in (("orch launch", ours), ("ssh docker run", bare), ("ratio", ratios)):
        print(f"{name:<15} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    return 0


def _plan() -> Plan:
    text = subprocess.run([*ORCH, "launch", "--dry-run", "--json", *COMMAND], capture_output=True, check=True).stdout
    return from_json(json.dumps(json.loads(text)["data"]), where="--dry-run")


def _launch(specs: dict[str, NodeSpec]) -> float:
    began = time.monotonic()
    subprocess.run([*ORCH, "launch", "--yes", "--detach", "--json", *COMMAND], capture_output=True, check=True)
    seconds = time.monotonic() - began
    _clear(specs)
    return seconds


def _bare(plan: Plan, specs: dict[str, NodeSpec]) -> float:
    lines = [(specs[part.node], ("docker", *run_words(part.container))) for part in plan.nodes]
    began = time.monotonic()
    with ThreadPoolExecutor(len(lines)) as pool:
        list(pool.map(lambda line: _ssh(line[0], line[1]), lines))
    seconds = time.monotonic() - began
    _clear(specs)
    return seconds


def ssh_words(spec: NodeSpec) -> tuple[str, ...]:
    """Words before a command on this node, with the host keys that orch knows."""
    known = " ".join(str(file) for file in known_files())
    identity = ("-i", spec.identity) if spec.identity else ()
    options = ("-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes", "-p", str(spec.port), *identity)
    return ("ssh", *options, f"{spec.user}@{spec.address}" if spec.user else spec.address)


def _ssh(spec: NodeSpec, argv: tuple[str, ...]) -> str:
    words = (*ssh_words(spec), shlex.join(argv))
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout


def _clear(specs: dict[str, NodeSpec]) -> None:
    """Wait until nothing of a pair runs any more."""
    with ThreadPoolExecutor(len(specs)) as pool:
        list(pool.map(lambda spec: _ssh(spec, ("docker", "rm", "-f", "orch-run")), specs.values()))
    json.loads(subprocess.run([*ORCH, "clean", "--json"], capture_output=True, check=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
