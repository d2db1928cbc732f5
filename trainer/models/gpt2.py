"""GPT-2: pre-norm transformer, learned positions, output layer tied to the embedding; and text generation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.layers import Recompute, RecomputedBlock, initialize_normal, join_heads, recompute, split_heads
from trainer.models.token_loss import WholeTokenLoss, chunk_for, logits, token_loss
from trainer.out_of_memory import gpu_memory


@dataclass(frozen=True, kw_only=True)
class Gpt2Shape:
    layers: int
    heads: int
    width: int
    seq_len: int
    vocab_size: int

    @property
    def flops_per_token(self) -> float:
        """Forward and backward: 6 for each weight of a matrix product and 12·layers·length·width for attention,
        causal or not (PaLM, appendix B): 0.854 GFLOP for GPT-2 124M at a length of 1024."""
        weights = self.vocab_size * self.width + self.layers * 12 * self.width**2
        return 6.0 * weights + 12.0 * self.layers * self.seq_len * self.width


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Settings of the computation, on which its results do not depend."""

    gradient_checkpointing: Recompute = 0
    loss_chunk: int | Literal["auto"] = "auto"
    """Tokens whose logits are in memory at a time; 0: all. auto: see `token_loss.chunk_for`."""


class Cache:
    """Keys and values of one layer, for all tokens of the window that were read."""

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
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.heads)
        if cache is not None:
            k, v = cache.extend(k, v)
        dropout = self.dropout if self.training else 0.0
        # A single token, the newest, attends to all: a causal mask would show it the first only.
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=x.shape[1] > 1)
        y: Tensor = self.proj(join_heads(mixed))
        return F.dropout(y, self.dropout, self.training)


class Gpt2Block(RecomputedBlock):
    def __init__(self, shape: Gpt2Shape, dropout: float) -> None:
        super().__init__()
        self.dropout, self.draws = dropout, dropout > 0
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads, dropout)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def compute(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.attention(self.norm_1(x), cache)
        y = self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class GPT2(nn.Module):
    def __init__(self, shape: Gpt2Shape, dropout: float = 0.0, computation: Computation | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.computation = computation or Computation()
        self._memory = gpu_memory()
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.seq_len, shape.width)
        blocks = [Gpt2Block(shape, dropout) for _ in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        recompute(blocks, self.computation.gradient_checkpointing)
        self.norm = nn.LayerNorm(shape.width)
        self.loss = WholeTokenLoss()
        self.apply(initialize_normal)
        for block in blocks:
            for last in (block.attention.proj, block.down):
                # GPT-2's rule for the layers whose outputs are added to the residual stream, 2·layers times.
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, tokens: Tensor, following: Tensor | None = None) -> Tensor:
        """(batch, length) token ids to (batch, length, vocabulary) logits, or, given the `following` tokens, to the sum
        of their cross entropies."""
        hidden = self._read(tokens)
        if following is None:
            return logits(hidden, self.tokens.weight)
        chunk = self.computation.loss_chunk
        if chunk == "auto":
            compiled = self.loss._compiled_call_impl is not None
            chunk = chunk_for(following.numel(), self.shape.vocab_size, self._memory, compiled=compiled)
        if chunk:
            return token_loss(hidden, self.tokens.weight, following, chunk)
        whole: Tensor = self.loss(hidden, self.tokens.weight, following)
        return whole

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
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None)
        y: Tensor = self.norm(x)
        return y


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Choice of the next token."""

    temperature: float = 1.0
    """0: always the likeliest token."""
    top_k: int = 0
    """Number of the likeliest tokens to choose from; 0: all."""
    top_p: float = 1.0
    """Total probability of the likeliest tokens to choose from."""


ENDED_LOOK_EVERY = 16
"""Tokens between two looks whether all texts have ended, on a GPU: each look waits for what is queued."""


@torch.no_grad()
def generate(model: GPT2, prompts: Tensor, count: int, sampling: Sampling, seed: int, end: int | None = None) -> Tensor:
    """Generate at most `count` tokens after each of `prompts` (batch, length). A full window drops its older half, as
    after a shift all tokens have to be read again: positions are learned. `end`: the token that ends a text; after it
    a row has nothing but this token, and where all texts have ended the result is shorter."""
    device = model.tokens.weight.device
    chance = torch.Generator(device).manual_seed(seed) if sampling.temperature > 0 else None
    window, length = model.shape.seq_len, prompts.shape[1]
    was_training = model.training
    model.eval()
    tokens = torch.empty(len(prompts), length + count, dtype=prompts.dtype, device=device)
    tokens[:, :length] = prompts
    ended = torch.zeros(len(prompts), 1, dtype=torch.bool, device=device)
    every = 1 if device.type == "cpu" else ENDED_LOOK_EVERY
    caches = model.caches(len(tokens))
    begin, at = max(0, length - window), length
    while at < length + count:
        if caches[0].length == window:
            for cache in caches:
                cache.length = 0
            begin = at - (window // 2 or 1)
        following = choose(model.next_logits(tokens[:, begin:at], caches).float(), sampling, chance)
        if end is not None:
            following = following.masked_fill(ended, end)
            ended |= following == end
        tokens[:, at : at + 1] = following
        begin, at = at, at + 1
        if end is not None and (at - length) % every == 0 and bool(ended.all()):
            break
    model.train(was_training)
    return tokens[:, length:at]


def choose(logits: Tensor, sampling: Sampling, chance: torch.Generator | None) -> Tensor:
    """(batch, 1) tokens of (batch, vocabulary) logits, on their device, which this does not wait for. `chance`: of the
    same device."""
    if sampling.temperature <= 0:
        return logits.argmax(dim=1, keepdim=True)
    vocabulary = logits.shape[1]
    choices = min(sampling.top_k, vocabulary) if sampling.top_k > 0 else vocabulary
    likeliest = torch.topk(logits / sampling.temperature, choices)
    weights = likeliest.values.softmax(dim=1)
    # The first stays, a later one if those before it have too little probability.
    weights = weights.masked_fill(weights.cumsum(dim=1) - weights >= sampling.top_p, 0.0)
    # The smallest of exponential random numbers, each divided by a weight, belongs to an index with the probability of
    # its weight. torch.multinomial computes the same, but reads the weights' sum on the CPU first.
    drawn = torch.empty_like(weights).exponential_(generator=chance)
    return likeliest.indices.gather(1, (weights / drawn).argmax(dim=1, keepdim=True))
