"""`python -m benchmarks.fuzz --seconds 600 [--only READER] [--seed N]`: exit code 1 if a reader raised an
undeclared error, was too slow on one text, or the memory exceeded its limit."""

from __future__ import annotations

import argparse
import resource
import sys
import time

from benchmarks.fuzz.readers import readers
from benchmarks.fuzz.run import fuzz, peak_mib

GROWTH_MIB = 512
BOMB_MIB = 4096
"""Limit of the address space: a text that fills memory raises MemoryError instead of slowing the machine."""


def main() -> int:
    every = readers()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time (default: 60)")
    parser.add_argument("--only", action="append", choices=sorted(every), help="this reader; repeat for more")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (BOMB_MIB << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
    before = peak_mib()
    print(f"seed {asked.seed}", flush=True)
    found = fuzz({name: every[name] for name in asked.only or every}, seconds=asked.seconds, seed=asked.seed)
    growth = peak_mib() - before
    for name, number in found.texts.items():
        print(f"{number:>8} texts  {name}")
    print(f"{sum(found.texts.values())} texts in {asked.seconds:.0f} s, memory grew by {growth:.0f} MiB")
    for fault, text in found.faults.items():
        print(f"✗ {fault}\n    {text}")
    return 1 if found.faults or growth > GROWTH_MIB else 0


if __name__ == "__main__":
    sys.exit(main())
