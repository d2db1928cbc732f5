"""Causal self-attention, with a choice of kernel for it and a cache for writing token by token."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.errors import OptionError

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("auto", "flash", "math")


def must_have_kernel(sdpa: str, device_type: str) -> None:
    """torch's own refusal comes in the first step and says no more than that there is none."""
    if device_type == "cpu" and sdpa not in ON_CPU:
        raise OptionError(f"--sdpa {sdpa}: a CPU has only {', '.join(ON_CPU)}")


class Cache:
    """Keys and values of one layer, for all tokens of the window that were read already."""

    def __init__(self, batch: int, heads: int, window: int, head_width: int, like: Tensor) -> None:
        self.keys = torch.empty(batch, heads, window, head_width, device=like.device, dtype=like.dtype)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + keys.shape[2]
        self.keys[:, :, start : self.length] = keys
        self.values[:, :, start : self.length] = values
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, sdpa: str = "auto") -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.sdpa = sdpa
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        if cache is not None:
            k, v = cache.extend(k, v)
        dropout = self.dropout if self.training else 0.0
        with self._kernel():
            # One token, the newest, may look at all: a causal mask would show it the first only.
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=length > 1)
        y: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training)

    def _kernel(self) -> AbstractContextManager[None]:
        # Here and not around the step: with gradient checkpointing the backward pass comes through here again.
        return nullcontext() if self.sdpa == "auto" else sdpa_kernel(KERNELS[self.sdpa])
