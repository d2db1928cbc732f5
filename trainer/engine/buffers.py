"""Buffers that forward passes update (batch norm: means and variances), to be put back where a step is void."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Buffers:
    """A copy of all of them; for a model that has none, nothing."""

    def __init__(self, model: nn.Module) -> None:
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for buffer in model.buffers():
            by_type.setdefault(buffer.dtype, []).append(buffer)
        # Lists of one type are copied by one kernel on a GPU, not by one for each of ResNet-50's 159 buffers.
        self._pairs = [([buffer.clone() for buffer in buffers], buffers) for buffers in by_type.values()]

    @torch.no_grad()
    def keep(self) -> None:
        for saved, buffers in self._pairs:
            torch._foreach_copy_(saved, buffers)

    @torch.no_grad()
    def put_back(self) -> None:
        for saved, buffers in self._pairs:
            torch._foreach_copy_(buffers, saved)

    @torch.no_grad()
    def put_back_where(self, void: Tensor) -> None:
        """Put them back where `void` is true: one value on their device, which this does not wait for."""
        for saved, buffers in self._pairs:
            before, now = (torch.cat([one.flatten() for one in each]) for each in (saved, buffers))
            parts = torch.split_with_sizes(torch.where(void, before, now), [one.numel() for one in buffers])
            torch._foreach_copy_(buffers, [part.view(one.shape) for part, one in zip(parts, buffers, strict=True)])
