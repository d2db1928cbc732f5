"""Trials of what a compiled GPT-2 step on a card could gain: changes to the trainer, one per contestant.

    python -m benchmarks.gpu --levers --data DIR          # at most 200 s

What gains 1 % or more on its hardware becomes the trainer's behaviour there; the rest is deleted. docs/benchmarks.md
has those that were measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpt2, waves
from benchmarks.report import Table
from benchmarks.side_by_side import Candidate, Comparison, cannot_take_part, compare
from benchmarks.stopwatch import Measured


def autotune() -> None:
    """Inductor times cuBLAS against its own kernels for each product."""
    from torch import nn

    compiled = nn.Module.compile

    def tuned(self: Any, **how: Any) -> None:
        how.pop("options", None)
        compiled(self, **how, mode="max-autotune-no-cudagraphs")

    nn.Module.compile = tuned  # type: ignore[method-assign]  # a lever


def with_levers(pulled: Sequence[Callable[[], None]], flags: Sequence[str]) -> Callable[[argparse.Namespace], Measured]:
    def measure(given: argparse.Namespace) -> Measured:
        for pull in pulled:
            pull()
        return gpt2.ours("--compile", *flags)(given)

    return measure


CANDIDATES = tuple(
    Candidate(name=name, measure=with_levers(pulled, flags), only_on=only_on)
    for name, pulled, flags, only_on in (
        ("as-it-is", (), (), ""),
        ("autotune", (autotune,), (), ""),
        ("graphs", (), ("--cuda-graphs",), "cuda"),
    )
)

SPEED = (
    "--batch-size", "16", "--warmup", "10", "--steps", "20", "--windows", "3", "--settle-steps", "5",
)  # fmt: skip
COMPARISON = Comparison(
    title="What a GPT-2 step could gain",
    module="benchmarks.gpu_levers",
    candidates=CANDIDATES,
    tables=(
        Table(name="levers", title="Levers", names=tuple(one.name for one in CANDIDATES), baseline="as-it-is"),
    ),
    arguments=gpt2.add_arguments,
    settle=gpt2.settle,
    prepare=gpt2.prepare,
)  # fmt: skip


def run(tokens: Path, logs: Path, end: float, report: waves.Report, *, rehearsed: bool) -> None:
    """Measure all levers in one wave; the trainer as it is comes first and last. `end`: a monotonic time."""
    on = ("--quick", "--device", "cpu", "--threads", "1") if rehearsed else ("--device", "cuda", *SPEED)
    contestants = [
        waves.Contestant(
            part="levers", name=one.name, turns=2 if one.name == "as-it-is" else 1,
            argv=("benchmarks.gpu_levers", "--data-dir", str(tokens.resolve()), *on, "--measure", one.name),
            environ={"TORCH_COMPILE_DISABLE": "1"} if rehearsed else {},
        )
        for one in CANDIDATES
        if not cannot_take_part(one, "cpu" if rehearsed else "cuda")
    ]  # fmt: skip
    waves.run(contestants, logs, waves.Limits.within(end - time.monotonic(), len(contestants)), report)


if __name__ == "__main__":
    sys.exit(compare(COMPARISON, sys.argv[1:]))
