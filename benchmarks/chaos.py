"""Inject faults into a run of a lab: measure the time to the next step after each, and verify that no step is lost.

    python -m benchmarks.chaos --seed 1 --minutes 10
    python -m benchmarks.chaos --nodes 5 --only 'rank killed' 'cut off' 'machine off and on' --times 10

Start a lab with image and data, inject one fault after another, check the guarantees of docs/faults.md after each,
train the same number of steps without faults, compare all losses, and remove the lab. The exit code is 1 at the first
violation. The same seed injects the same faults; an odd seed fills the disk of rank 0's machine, an even one switches
it off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.lab.chaos import Chaos, Fault, a_run, as_undisturbed, play, shuffled
from tests.lab.conftest import NAMES, Orch, a_lab
from tests.lab.underway import TORCH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0, help="to inject faults, all kinds in random order")
    parser.add_argument("--times", type=int, help="instead: each kind this many times")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="with --times; the kinds are in tests/lab/chaos.py")
    parser.add_argument("--nodes", type=int, default=3, choices=range(2, len(NAMES) + 1))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, a_lab(Path(folder), given.nodes, say) as orch:
        try:
            survive(orch, given)
        except AssertionError as broken:
            say(f"BROKEN: {broken}")
            return 1
    return 0


def survive(orch: Orch, given: argparse.Namespace) -> None:
    began = time.monotonic()
    small_disk = "disk full" in given.only if given.only else given.seed % 2 == 1
    with a_run(orch, TORCH, NAMES[: given.nodes], given.seed, small_disk=small_disk) as chaos:
        acts = counted(chaos, given.only, given.times) if given.times else shuffled(chaos, given.minutes * 60)
        play(chaos, acts, say)
    minutes = (time.monotonic() - began) / 60
    for line in table(chaos.faults):
        say(line)
    say(f"seed {given.seed}, {minutes:.0f} minutes: {as_undisturbed(chaos)}; no invariant broken")


def counted(chaos: Chaos, only: Sequence[str] | None, times: int) -> Iterator[str]:
    kinds = [what for what in only or sorted(chaos.kinds()) for _ in range(times)]
    return iter(chaos.chance.sample(kinds, len(kinds)))


def table(faults: Sequence[Fault]) -> Iterator[str]:
    yield "| fault | times | time to the next step, median | maximum | steps repeated, at most |"
    yield "|---|---|---|---|---|"
    for what in sorted({fault.what for fault in faults}):
        these = [fault for fault in faults if fault.what == what]
        back = [fault.back_s for fault in these]
        most = max(fault.lost for fault in these)
        yield f"| {what} | {len(these)} | {statistics.median(back):.0f} s | {max(back):.0f} s | {most} |"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
