"""A way to keep ranks in common that takes as much memory as the real one, and asks no rank for anything."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from trainer.engine.sync import ladder
from trainer.engine.sync.ddp import Alone
from trainer.engine.sync.strategy import Sync
from trainer.engine.trials.measure import Echo
from trainer.forecast.choice import AUTO

LARGEST = "fp16"
"""Of those that `auto` chooses among, the one that sends most beside what it keeps."""


def stand_in(name: str, whose: ladder.Whose) -> Sync:
    """For `ladder.build` of the same arguments; the other ranks echo what they are sent."""
    group = whose.group
    if group.alone:
        return Alone(whose.model)
    if name == "fp32":
        return _Buckets(whose.model)
    echo = Echo(place=group.place, backend="none", device=next(whose.model.parameters()).device)
    return ladder.build(LARGEST if name == AUTO else name, replace(whose, group=echo), 0, static_graph=False)


class _Buckets(Alone):
    """DDP's, which are as large as all gradients and lie beside these while a step has several micro-batches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._held = [torch.empty_like(parameter) for parameter in model.parameters() if parameter.requires_grad]

    def close(self) -> None:
        self._held.clear()
