"""A way to keep ranks in common that takes as much memory as the real one, and asks no rank for anything."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from contract.cost_model.choice import AUTO
from trainer.engine.autotune.measure import Echo
from trainer.engine.sync import methods
from trainer.engine.sync.ddp import Alone
from trainer.engine.sync.in_nodes import in_two_levels
from trainer.engine.sync.strategy import Sync

LARGEST = "fp16"
"""Name of the method that sends most beside what it keeps, among those that `auto` chooses from."""


def stand_in(name: str, context: methods.SyncContext) -> Sync:
    """For `methods.build` of the same arguments; the other ranks echo what they are sent."""
    group = context.group
    if group.alone:
        return Alone(context.model)
    if name == "fp32" and not in_two_levels(group.nodes):
        return _Buckets(context.model)
    device = next(context.model.parameters()).device
    echo = Echo(place=group.place, backend="none", device=device, nodes=group.nodes)
    return methods.build(LARGEST if name == AUTO else name, replace(context, group=echo), 0, static_graph=False)


class _Buckets(Alone):
    """DDP's, which are as large as all gradients and lie beside these while a step has several micro-batches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._held = [torch.empty_like(parameter) for parameter in model.parameters() if parameter.requires_grad]

    def close(self) -> None:
        self._held.clear()
