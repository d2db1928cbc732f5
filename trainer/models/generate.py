"""Text generation: one token after another, with each layer's keys and values cached."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models.gpt2 import GPT2


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Choice of the next token."""

    temperature: float = 1.0
    """0: always the likeliest token."""
    top_k: int = 0
    """Number of the likeliest tokens to choose from; 0: all."""
    top_p: float = 1.0
    """Total probability of the likeliest tokens to choose from."""


@torch.no_grad()
def generate(model: GPT2, prompts: Tensor, count: int, sampling: Sampling, seed: int) -> Tensor:
    """Generate `count` tokens after each of `prompts` (batch, length). A full window drops its older half, as after a
    shift all tokens have to be read again: positions are learned."""
    chance = torch.Generator().manual_seed(seed)
    window = model.shape.seq_len
    was_training = model.training
    model.eval()
    tokens = prompts.to(model.tokens.weight.device)
    caches = model.caches(len(tokens))
    unread = tokens[:, -window:]
    for _ in range(count):
        if caches[0].length == window:
            for cache in caches:
                cache.length = 0
            unread = tokens[:, -(window // 2 or 1) :]
        following = choose(model.next_logits(unread, caches).float().cpu(), sampling, chance)
        unread = following.to(tokens.device)
        tokens = torch.cat([tokens, unread], dim=1)
    model.train(was_training)
    return tokens[:, prompts.shape[1] :]


def choose(logits: Tensor, sampling: Sampling, chance: torch.Generator) -> Tensor:
    """(batch, 1) tokens of (batch, vocabulary) logits."""
    if sampling.temperature <= 0:
        return logits.argmax(dim=1, keepdim=True)
    vocabulary = logits.shape[1]
    kept = min(sampling.top_k, vocabulary) if sampling.top_k > 0 else vocabulary
    likeliest = torch.topk(logits / sampling.temperature, kept)
    weights = likeliest.values.softmax(dim=1)
    # The first stays, a later one if those before it have too little probability.
    weights[weights.cumsum(dim=1) - weights >= sampling.top_p] = 0.0
    return likeliest.indices.gather(1, torch.multinomial(weights, 1, generator=chance))
