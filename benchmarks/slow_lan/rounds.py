"""Interleave candidates, A B C A B C, so that a temporary slowdown of the machine affects all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.report import Spread
from benchmarks.slow_lan.rig import RunFailed
from benchmarks.slow_lan.train import Trained, Way


@dataclass(kw_only=True)
class Entry:
    """A candidate, its runs, and why there are no more of them."""

    way: Way
    runs: list[Trained] = field(default_factory=list)
    problem: str = ""

    def spread(self, figure: str) -> Spread | None:
        return Spread.of(getattr(run, figure) for run in self.runs)


def in_turns(ways: Sequence[Way], repeats: int, run: Callable[[Way, int], Trained]) -> list[Entry]:
    """Call `run(way, round)` for each way, `repeats` times; one that has failed is not run again."""
    entries = [Entry(way=way) for way in ways]
    for number in range(repeats):
        for entry in entries:
            if entry.problem:
                continue
            try:
                entry.runs.append(run(entry.way, number))
                text = f"{entry.runs[-1].step_s:.3f} s a step"
            except (RunFailed, ValueError) as error:
                entry.problem = text = str(error)
            print(f"round {number + 1} of {repeats}: {entry.way.name}: {text}", file=sys.stderr, flush=True)
    return entries
