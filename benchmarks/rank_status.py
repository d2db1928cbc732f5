"""Cost of the rank status: CPU time per rank and second, per optimizer step and per look of the agent, and memory.

    python -m benchmarks.rank_status

Processes with the status and without it, in turn, three rounds; medians (minimum to maximum).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROBE = """
import json, os, sys, time
from trainer.agent import rank_status
rank_status.install(os.environ)
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for _ in range(50):  # torch has recorded some collectives
    model(torch.randn(8, 64)).sum().backward()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
optimizer.step()
shortest = []
for _ in range(100):
    began = time.thread_time()
    for _ in range(200):
        optimizer.step()
    shortest.append((time.thread_time() - began) / 200 * 1e6)
step_us = sorted(shortest)[10]  # other work of the machine only makes it longer
began = time.process_time()
time.sleep(float(sys.argv[2]))
idle_ms = (time.process_time() - began) / float(sys.argv[2]) * 1e3
memory = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
private_mib = int(memory["Private_Dirty"].split()[0]) / 1024
print(json.dumps({"step_us": step_us, "idle_ms": idle_ms, "private_mib": private_mib}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="for which an idle rank is measured")
    given = parser.parse_args()
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for _ in range(given.rounds):
        for on in (False, True):
            found[on].append(_probe(on, given.seconds))
    print("| | with | without | difference |\n|---|---|---|---|")
    for name, what in (
        ("idle_ms", "CPU of a rank that waits, ms per second"),
        ("step_us", "CPU of an optimizer step, µs"),
        ("private_mib", "private memory of a rank, MiB"),
    ):
        on, off = ([values[name] for values in found[side]] for side in (True, False))
        difference = statistics.median(one - other for one, other in zip(on, off, strict=True))
        print(f"| {what} | {_spread(on)} | {_spread(off)} | {difference:+.2f} |")
    print(f"\nA look of the agent at two ranks: {_look_ms():.1f} ms of CPU, every 5 s; load {os.getloadavg()[0]:.1f}")
    return 0


def _probe(on: bool, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rank-status-", dir="/dev/shm") as folder:
        environ = {**os.environ, "ORCH_BEATS": folder if on else "", "RANK": "0", "WORLD_SIZE": "1"}
        words = (sys.executable, "-c", PROBE, f"{folder}/store", str(seconds))
        done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def _look_ms() -> float:
    """CPU time of one look at two ranks, which are processes below this one."""
    from trainer.agent.rank_signs import RankSignsReader

    with tempfile.TemporaryDirectory(prefix="rank-status-", dir="/dev/shm") as folder:
        ranks = [
            subprocess.Popen(
                (sys.executable, "-c", PROBE, f"{folder}/store-{rank}", "60"),
                env={**os.environ, "ORCH_BEATS": folder, "RANK": str(rank), "WORLD_SIZE": "1"},
                stdout=subprocess.DEVNULL,
            )
            for rank in range(2)
        ]
        try:
            while len(list(Path(folder).glob("*.status"))) < 2:
                time.sleep(0.5)
            reader = RankSignsReader(Path(folder), "alpha", 0, 5.0)
            reader.read(0)
            began = time.process_time()
            for _ in range(50):
                assert len(reader.read(0)) == 2  # noqa: S101  # otherwise it is not the cost of two
            return (time.process_time() - began) / 50 * 1e3
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
