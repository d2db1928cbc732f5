"""`--cuda-graphs`: conditions under which torch may record a compiled model's kernels and replay them.

A replay writes to the same memory as the one before: outputs and gradients of a step are gone when the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from trainer.config import TrainOptions
from trainer.errors import OptionError
from trainer.models.layers import RecomputedBlock


def must_allow_graphs(
    options: TrainOptions, model: nn.Module, device: torch.device, *, ranks: int, micro_batches: int
) -> None:
    """OptionError: all reasons why this run cannot have CUDA graphs."""
    reasons = list(_reasons(options, model, device, ranks, micro_batches)) if options.cuda_graphs else []
    if reasons:
        raise OptionError("\n".join(f"--cuda-graphs: {reason}" for reason in reasons))


def _reasons(
    options: TrainOptions, model: nn.Module, device: torch.device, ranks: int, micro_batches: int
) -> Iterator[str]:
    if device.type != "cuda":
        yield f"they are for a GPU, and this rank computes on {device.type}: leave the option out"
    if options.compile is not True:
        yield "only what is compiled is recorded: add --compile"
    if ranks > 1:
        yield "the exchange reads gradients beside the computation, so they are for one rank: leave the option out"
    if micro_batches > 1:
        yield (
            f"a step of {micro_batches} micro-batches adds up gradients that the next micro-batch overwrites:"
            " use one micro-batch per step (--grad-accum 1, a --batch-size that fits into memory)"
        )
    if any(isinstance(module, RecomputedBlock) and module.recompute for module in model.modules()):
        yield "recomputed blocks draw random numbers twice, unproven in a replay: leave out --gradient-checkpointing"
