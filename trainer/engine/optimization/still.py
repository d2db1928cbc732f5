"""A step of the optimizer that moves nothing: for its time and its memory before the first real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer


@contextmanager
def standing_still(model: nn.Module, optimizer: Optimizer) -> Iterator[Callable[[], None]]:
    """Within, the function it gives clips and steps: rate 0 and gradients of zero move no weight. What the optimizer
    began to remember is forgotten at the end: for an optimizer that has not taken or loaded a step."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def step() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        float(next(model.parameters()).detach().reshape(-1)[0])  # waits for what a GPU still has to do

    try:
        yield step
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
