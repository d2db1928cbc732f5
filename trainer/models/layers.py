"""Parts that several models share: attention heads, initial weights, gradient checkpointing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

INIT_STD = 0.02


def split_heads(qkv: Tensor, heads: int) -> list[Tensor]:
    """Queries, keys and values, each (batch, heads, length, width / heads), of (batch, length, 3 · width)."""
    batch, length, _ = qkv.shape
    return [part.view(batch, length, heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=2)]


def join_heads(mixed: Tensor) -> Tensor:
    """(batch, heads, length, width / heads) to (batch, length, width)."""
    batch, heads, length, width = mixed.shape
    return mixed.transpose(1, 2).reshape(batch, length, heads * width)


def initialize_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def initialize_truncated(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(module.weight, std=INIT_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def rematerialized(block: nn.Module, *inputs: Tensor | None) -> Tensor:
    """Gradient checkpointing: keep a block's input alone and compute the rest again in the backward pass."""
    out: Tensor
    if torch.compiler.is_compiling():  # a change of a buffer is moved out of the graph there, and happens once
        out = checkpoint(block, *inputs, use_reentrant=False)
    else:
        out = checkpoint(
            block, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _without_statistics(block))
        )
    return out


@contextmanager
def _without_statistics(block: nn.Module) -> Iterator[None]:
    """Leave running means alone: a second update by the same batch would change what evaluation uses."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
