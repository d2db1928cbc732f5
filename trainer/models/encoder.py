"""BERT's encoder as `transformers` computes it, with one output layer for all heads.

Training and prediction do not need `transformers`: models/pretrained.py converts its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.layers import Recompute, RecomputedBlock, initialize_normal, join_heads, recompute, split_heads
from trainer.models.packed import Packed, attend

Among = Tensor | Packed | None
"""Tokens to which each one attends: a mask (samples, 1, 1, length), False for padding; those of its own text in a
packed batch; or None: all of its row."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    layers: int
    attention_heads: int
    width: int
    inner_width: int
    vocab_size: int
    positions: int = 512
    first_position: int = 0
    """RoBERTa counts from 2."""
    padding_id: int = 0
    activation: str = "gelu"
    norm_epsilon: float = 1e-12

    @property
    def longest(self) -> int:
        return self.positions - self.first_position


@dataclass(frozen=True, kw_only=True)
class Dropout:
    hidden: float = 0.1
    attention: float = 0.1
    head: float = 0.1


class Embeddings(nn.Module):
    """Embeddings without token types: all of a single text is of type 0, and its vector is part of every position's."""

    def __init__(self, shape: EncoderShape, dropout: float) -> None:
        super().__init__()
        self.first_position = shape.first_position
        self.dropout = dropout
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.norm_epsilon)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """`places`: positions of the tokens in their texts; None: each row is a text."""
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = self.norm(self.tokens(tokens) + self.positions(places + self.first_position))
        return F.dropout(x, self.dropout, self.training)


class Layer(RecomputedBlock):
    def __init__(self, shape: EncoderShape, dropout: Dropout) -> None:
        super().__init__()
        self.heads = shape.attention_heads
        self.dropout = dropout
        self.activation = ACTIVATIONS[shape.activation]
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.norm_1 = nn.LayerNorm(shape.width, shape.norm_epsilon)
        self.up = nn.Linear(shape.width, shape.inner_width)
        self.down = nn.Linear(shape.inner_width, shape.width)
        self.norm_2 = nn.LayerNorm(shape.width, shape.norm_epsilon)

    def compute(self, x: Tensor, among: Among) -> Tensor:
        dropout = self.dropout.attention if self.training else 0.0
        qkv = self.qkv(x)
        if isinstance(among, Packed):
            q, k, v = (part.unflatten(1, (self.heads, -1)) for part in qkv.chunk(3, dim=1))
            mixed = attend(q, k, v, among, dropout).flatten(1)
        else:
            q, k, v = split_heads(qkv, self.heads)
            mixed = join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=among, dropout_p=dropout))
        mixed = self.proj(mixed)
        x = self.norm_1(x + F.dropout(mixed, self.dropout.hidden, self.training))
        inner = self.down(self.activation(self.up(x)))
        y: Tensor = self.norm_2(x + F.dropout(inner, self.dropout.hidden, self.training))
        return y


class Encoder(nn.Module):
    """Tokens, or the outputs of the frozen part, to the logits of all heads in one row."""

    def __init__(
        self, shape: EncoderShape, classes: int, dropout: Dropout, frozen: int = 0, *, checkpointing: Recompute = 0
    ) -> None:
        """`frozen`: number of layers that are not trained, nor the embeddings; 0: all is trained. `checkpointing`: of
        trained layers."""
        super().__init__()
        self.frozen = frozen
        self.head_dropout = dropout.head
        self.embeddings = Embeddings(shape, dropout.hidden)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        recompute(self.layers[frozen:], checkpointing)
        self.pool = nn.Linear(shape.width, shape.width)
        self.heads = nn.Linear(shape.width, classes)
        self.apply(initialize_normal)
        for module in self.frozen_modules():
            module.requires_grad_(False)
        self.train()

    def frozen_modules(self) -> list[nn.Module]:
        return [] if not self.frozen else [self.embeddings, *self.layers[: self.frozen]]

    def train(self, mode: bool = True) -> Encoder:
        """Keep the frozen part without dropout: its output for a text is always the same."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        return self

    @torch.no_grad()
    def embed(self, tokens: Tensor, among: Among) -> Tensor:
        """Outputs of the frozen part: (samples, length, width), or (tokens, width)."""
        x: Tensor = self.embeddings(tokens, among.places if isinstance(among, Packed) else None)
        for layer in self.layers[: self.frozen]:
            x = layer(x, among)
        return x.float()  # also under autocast: the same as from the cache on disk

    def forward(self, x: Tensor, among: Among = None) -> Tensor:
        """`x`: tokens, or outputs of `embed`. `among`: what attention is among, see `Among`."""
        packed = among if isinstance(among, Packed) else None
        if not self.frozen:
            x = self.embeddings(x, packed.places if packed else None)
        elif not x.is_floating_point():
            x = self.embed(x, among)
        for layer in self.layers[self.frozen :]:
            x = layer(x, among)
        pooled = torch.tanh(self.pool(x[packed.starts] if packed else x[:, 0]))
        logits: Tensor = self.heads(F.dropout(pooled, self.head_dropout, self.training))
        return logits
