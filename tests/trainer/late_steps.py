"""`python -m tests.trainer.late_steps WORDS…`: a training on the late device; its last line has the calls that waited.

It has also how many operators were queued between the copy of each step's figures and their reading, and for each
batch whether its copy had begun before it was asked for.

A process of its own: torch's autograd knows only the devices that exist at the first backward pass of the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.trainer.late_device import NAME, late_device
from trainer.cli import main
from trainer.data.batch import Batch
from trainer.engine import loop
from trainer.engine.dataloader import MicroBatchLoader

AHEAD: list[bool] = []


class Watched(MicroBatchLoader):
    def __next__(self) -> Batch:
        AHEAD.append(self._ahead is not None)
        return super().__next__()


def train(words: Sequence[str]) -> int:
    usual = loop.prepare_hardware
    loop.prepare_hardware = lambda *given: replace(usual(*given), device=torch.device(NAME, 0))
    loop.MicroBatchLoader = Watched  # type: ignore[misc]  # the loop makes its own
    with late_device(within=loop._loop) as noted:
        code = main(words)
    waits = {place: sorted(calls) for place, calls in noted.places.items()}
    sys.stdout.write(json.dumps({"waits": waits, "reads": noted.reads, "ahead": AHEAD}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(train(sys.argv[1:]))
