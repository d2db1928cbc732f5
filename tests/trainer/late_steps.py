"""A training on the late device, to be run in a process of its own: torch's autograd knows only the devices that exist
at the first backward pass of the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, kw_only=True)
class Noted:
    waits: dict[str, list[str]]
    """Calls that waited, by file and function."""
    reads: list[int]
    """Operators queued between the copy of each step's figures and their reading."""
    ahead: list[bool]
    """Flag of each batch: its copy had begun before it was asked for."""


def train(words: Sequence[str]) -> Noted:
    usual = loop.prepare_hardware
    loop.prepare_hardware = lambda *given: replace(usual(*given), device=torch.device(NAME, 0))
    loop.MicroBatchLoader = Watched  # type: ignore[misc]  # the loop makes its own
    with late_device(within=loop._loop) as noted:
        assert main(words) == 0
    waits = {place: sorted(calls) for place, calls in noted.places.items()}
    return Noted(waits=waits, reads=noted.reads, ahead=AHEAD)
