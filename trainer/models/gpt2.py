"""GPT-2: pre-norm transformer, learned positions, output layer tied to the embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int
    heads: int
    width: int
    seq_len: int
    vocab_size: int


class Attention(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape, dropout)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        y = self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class GPT2(nn.Module):
    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.seq_len, shape.width)
        blocks = [Block(shape, dropout) for _ in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.width)
        self.apply(self._initialise)
        for block in blocks:
            for last in (block.attention.proj, block.down):
                # GPT-2's rule: what is added to the residual stream 2·layers times starts smaller.
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) token ids to (batch, length, vocabulary) logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.tokens(tokens) + self.positions(places), self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


@torch.no_grad()
def generate(model: GPT2, prompt: list[int], count: int, *, temperature: float, top_k: int, seed: int) -> list[int]:
    """`count` more tokens; temperature 0 takes the likeliest each time."""
    device = model.tokens.weight.device
    chance = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    was_training = model.training
    model.eval()
    for _ in range(count):
        window = torch.tensor([tokens[-model.shape.seq_len :]], device=device)
        logits = model(window)[0, -1].float().cpu()
        if temperature <= 0:
            tokens.append(int(logits.argmax()))
            continue
        likeliest = torch.topk(logits, min(top_k, len(logits)) if top_k > 0 else len(logits))
        weights = F.softmax(likeliest.values / temperature, dim=0)
        tokens.append(int(likeliest.indices[torch.multinomial(weights, 1, generator=chance)]))
    model.train(was_training)
    return tokens[len(prompt) :]
