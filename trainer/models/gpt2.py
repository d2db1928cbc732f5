"""GPT-2: pre-norm transformer, learned positions, output layer tied to the embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.models.attention import Attention, Cache
from trainer.models.token_loss import chunk_for, logits, token_loss


@dataclass(frozen=True, kw_only=True)
class Gpt2Shape:
    layers: int
    heads: int
    width: int
    seq_len: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How the model computes; its results do not depend on it."""

    gradient_checkpointing: bool = False
    """Keep only what goes into each block and compute the rest again in the backward pass: less memory, more time."""
    loss_chunk: int | Literal["auto"] = "auto"
    """Tokens whose logits are in memory at a time; 0: all. auto: see `token_loss.chunk_for`."""
    sdpa: str = "auto"


class Gpt2Block(nn.Module):
    def __init__(self, shape: Gpt2Shape, dropout: float, sdpa: str) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads, dropout, sdpa)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.attention(self.norm_1(x), cache)
        y = self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class GPT2(nn.Module):
    def __init__(self, shape: Gpt2Shape, dropout: float = 0.0, computation: Computation | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.computation = computation or Computation()
        self._memory = torch.cuda.get_device_properties().total_memory if torch.cuda.is_available() else 0
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.seq_len, shape.width)
        blocks = [Gpt2Block(shape, dropout, self.computation.sdpa) for _ in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.width)
        self.apply(self._initialise)
        for block in blocks:
            for last in (block.attention.proj, block.down):
                # GPT-2's rule: what is added to the residual stream 2·layers times starts smaller.
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, tokens: Tensor, following: Tensor | None = None) -> Tensor:
        """(batch, length) token ids to (batch, length, vocabulary) logits, or, with `following` tokens given,
        to the sum of their cross entropies."""
        hidden = self._read(tokens)
        if following is None:
            return logits(hidden, self.tokens.weight)
        chunk = self.computation.loss_chunk
        if chunk == "auto":
            chunk = chunk_for(following.numel(), self.shape.vocab_size, self._memory)
        return token_loss(hidden, self.tokens.weight, following, chunk)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Matrices decay, biases and norms do not; Muon (engine/optimizing) takes those between hidden states."""
        matrices = [module for module in self.modules() if isinstance(module, nn.Linear)]
        qkv = [block.attention.qkv.weight for block in self.blocks if isinstance(block, Gpt2Block)]
        hidden = [m.weight for m in matrices if not any(m.weight is weight for weight in qkv)]
        return [
            {"params": hidden, "weight_decay": weight_decay, "muon": True},
            {"params": qkv, "weight_decay": weight_decay, "muon": True, "parts": 3},
            {"params": [self.tokens.weight, self.positions.weight], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]

    def next_logits(self, tokens: Tensor, caches: list[Cache]) -> Tensor:
        """(batch, vocabulary): logits after `tokens`, which continue where those in the caches end."""
        return logits(self._read(tokens, caches)[:, -1], self.tokens.weight)

    def caches(self, batch: int) -> list[Cache]:
        head_width = self.shape.width // self.shape.heads
        size = (batch, self.shape.heads, self.shape.seq_len, head_width)
        return [Cache(*size, like=self.tokens.weight) for _ in self.blocks]

    def _read(self, tokens: Tensor, caches: list[Cache] | None = None) -> Tensor:
        start = caches[0].length if caches else 0
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = F.dropout(self.tokens(tokens) + self.positions(places), self.dropout, self.training)
        again = self.computation.gradient_checkpointing and torch.is_grad_enabled()
        for number, block in enumerate(self.blocks):
            if again:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.dropout > 0)
            else:
                x = block(x, caches[number] if caches else None)
        y: Tensor = self.norm(x)
        return y

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
