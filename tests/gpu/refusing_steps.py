"""`python -m tests.gpu.refusing_steps WORDS…`: a training whose steps fail at a call that waits for the GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.cli import main
from trainer.engine import loop
from trainer.engine.step_figures import StepFigures
from trainer.engine.step_stats import TakenStep

FIRST, LAST = 2, 4
"""Steps between whose ends no call may wait: the first makes what is made once."""


class Watched(StepFigures):
    """Refuses calls that wait from the end of one step to that of another."""

    def send(self, taken: TakenStep, sums: Tensor, norm: Tensor) -> None:
        super().send(taken, sums, norm)
        if taken.step in (FIRST, LAST):
            torch.cuda.set_sync_debug_mode("error" if taken.step == FIRST else "default")


def train(words: Sequence[str]) -> int:
    loop.StepFigures = Watched  # type: ignore[misc]  # the loop makes its own
    return main(words)


if __name__ == "__main__":
    sys.exit(train(sys.argv[1:]))
