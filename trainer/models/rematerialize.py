"""Gradient checkpointing: keep a block's input alone, and compute what is inside again on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def rematerialized(block: nn.Module, *inputs: Tensor | None) -> Tensor:
    if torch.compiler.is_compiling():  # what changes a buffer is taken out of the graph there, and happens once
        inside: Tensor = checkpoint(block, *inputs, use_reentrant=False)
        return inside

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), uncounted(block)

    out: Tensor = checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
    return out


@contextmanager
def uncounted(block: nn.Module) -> Iterator[None]:
    """Running means have seen this batch once already: a second time would change what evaluation uses."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
