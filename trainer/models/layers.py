"""Parts that several models share: attention heads, initial weights, gradient checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

INIT_STD = 0.02
Recompute = int | Literal["selective"]
"""Part of a model that is computed again in the backward pass instead of kept: all of every N-th block (0: nothing),
or in each block all but the results of `COSTLY`."""
_ATEN = torch.ops.aten
COSTLY = [
    _ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.convolution.default,
    _ATEN._scaled_dot_product_flash_attention.default, _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default, _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
]  # fmt: skip
"""Matrix products, convolutions and attention: nearly all of the work, and two thirds of a transformer's memory."""


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


_Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


class RecomputedBlock(nn.Module):
    """A block of a model that can compute parts of its forward pass again in the backward pass (gradient
    checkpointing): less memory, more work. Within the block, so that it is part of what torch.compile compiles.
    """

    recompute: Recompute = 0
    draws = True
    """True if the forward pass draws random numbers, which have to be the same again."""

    compute: Callable[..., Tensor]
    """The forward pass, from the same arguments."""

    def forward(self, *inputs: Any) -> Tensor:
        if not self.recompute or not torch.is_grad_enabled():
            return self.compute(*inputs)
        contexts = self._contexts()
        options: dict[str, Any] = {"context_fn": contexts} if contexts else {}
        out: Tensor = checkpoint(self.compute, *inputs, use_reentrant=False, preserve_rng_state=self.draws, **options)
        return out

    def _contexts(self) -> _Contexts | None:
        """Return what makes the contexts of the first forward pass, and of the second one."""
        selective = partial(create_selective_checkpoint_contexts, COSTLY) if self.recompute == "selective" else None
        if torch.compiler.is_compiling():  # a change of a buffer is moved out of the graph there, and happens once
            return selective

        def without_statistics() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            first, second = selective() if selective else (nullcontext(), nullcontext())
            return first, _without_statistics(self, second)

        return without_statistics


class RegionOnGpu(nn.Module):
    """A part without weights that torch.compile compiles besides a model's blocks, on a GPU: there memory traffic
    decides, which a compiler saves; on a CPU the gain is not worth the time that it takes."""


def recompute(blocks: Iterable[nn.Module], how: Recompute) -> None:
    """Let the blocks of a model, first to last, compute again what `how` says."""
    for number, block in enumerate(blocks):
        assert isinstance(block, RecomputedBlock)  # noqa: S101  # each model's own
        block.recompute = how if how == "selective" else int(how > 0 and number % how == 0)


@contextmanager
def _without_statistics(block: nn.Module, other: AbstractContextManager[Any]) -> Iterator[None]:
    """Leave running means alone, in the other context: a second update by the same batch would change what evaluation
    uses."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with other:
            yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
