"""Time to the first collective with torch's store closed to strangers, relative to a store that is open.

Needs a lab of two processes with torch (`orch lab up --engine process --nodes 2`). The agents are the same for both;
the plain torchrun is one that a script of the user starts. The two are interleaved, A B A B; the results are medians of
the ratios of all pairs. Ranks wait for each other in a folder before they begin, so that a late import counts nothing.
Neither has a warm process: the plain torchrun could not be forked from it.

    python -m benchmarks.first_collective [--pairs 5]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ORCH = (sys.executable, "-m", "orchestrator")
PLAIN = "exec torchrun first.py"
RANK = """
import os, pathlib, time
import torch, torch.distributed as dist

def started(pid):  # of the agent above
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    line = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\\0")
    return int(words[19]) / os.sysconf("SC_CLK_TCK") if "trainer.agent" in line else started(words[1])

here = pathlib.Path(os.environ["MEETING"])
(here / os.environ["RANK"]).touch()
while len(list(here.iterdir())) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.002)
began = time.perf_counter()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
ended = time.perf_counter()
since_start = time.clock_gettime(time.CLOCK_BOOTTIME) - started(os.getpid())
rank = os.environ["RANK"]
print(f"FIRST {rank} {ended - began:.4f} {since_start:.2f} END", flush=True)
store, began = dist.distributed_c10d._get_default_store(), time.perf_counter()
for i in range(300):
    store.add(rank, 1)
print(f"STORE {rank} {(time.perf_counter() - began) / 300 * 1e6:.0f} END", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    plain, ours = [], []
    for number in range(pairs):
        plain.append(_run(("bash", "plain.sh")))
        ours.append(_run(("python", "first.py")))
        print(f"pair {number + 1}, load {os.getloadavg()[0]:.1f}: plain {plain[-1]}, ours {ours[-1]}", flush=True)
    for place, name in enumerate(("first collective, s", "from the agents' start, s", "message to the store, us")):
        columns = [[one[place] for one in each] for each in (plain, ours)]
        ratios = [own / other for other, own in zip(*columns, strict=True)]
        each = [f"{statistics.median(one):.4g} ({min(one):.4g} to {max(one):.4g})" for one in (*columns, ratios)]
        print(f"{name}: plain {each[0]}, ours {each[1]}, ratio {each[2]}")
    return 0


def _run(words: Sequence[str]) -> tuple[float, float, float]:
    """Seconds of the first collective and from the start of the agent, microseconds of a message: of the slowest
    rank."""
    with tempfile.TemporaryDirectory() as meeting, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "first.py").write_text(RANK.replace('os.environ["MEETING"]', repr(meeting)))
        (Path(folder) / "plain.sh").write_text(PLAIN + "\n")
        line = (*ORCH, "launch", "--nodes", "2", "--yes", "--no-warm-start", "--", *words)
        ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)
    first = re.findall(r"FIRST . (\S+) (\S+) END", ended.stdout)
    stores = re.findall(r"STORE . (\S+) END", ended.stdout)
    if len(first) != 2 or len(stores) != 2:
        raise SystemExit(f"{' '.join(line)} failed:\n{ended.stdout}\n{ended.stderr}")
    return max(float(one) for one, _ in first), max(float(two) for _, two in first), max(map(float, stores))


if __name__ == "__main__":
    sys.exit(main())
