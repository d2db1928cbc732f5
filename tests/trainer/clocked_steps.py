"""`python -m tests.trainer.clocked_steps [[MODULE, WORD, …], …]`: run programs, one after another, on a clock of ours.

It moves by 0.25 s when a batch of GPT-2's is loaded and by 0.75 s in its forward pass: a step takes exactly 1 s. A line
`== 0` precedes the output of the first program.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

LOADING_S, COMPUTING_S = 0.25, 0.75
_now = 1_800_000_000.0


def main(argv: Sequence[str]) -> int:
    time.time = time.perf_counter = lambda: _now  # before they are imported from there
    from trainer.workloads.gpt2 import Gpt2

    Gpt2.batch = _taking(LOADING_S, Gpt2.batch)  # type: ignore[method-assign]  # the same with a clock
    Gpt2.loss_sums = _taking(COMPUTING_S, Gpt2.loss_sums)  # type: ignore[method-assign]  # the same with a clock
    for number, words in enumerate(json.loads(argv[0])):
        sys.stdout.write(f"== {number}\n")
        sys.stdout.flush()
        process = get_context("fork").Process(target=_run, args=words)  # each would import torch for itself
        process.start()
        process.join()
        if process.exitcode:
            return process.exitcode
    return 0


def _taking(seconds: float, call: Any) -> Any:
    def timed(*given: Any, **named: Any) -> Any:
        global _now
        _now += seconds
        return call(*given, **named)

    return timed


def _run(module: str, *words: str) -> None:
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
