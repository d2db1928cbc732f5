"""Texts of a batch in one row, without padding, and attention of each text to itself alone."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

HALF = (torch.bfloat16, torch.float16)
AMPERE = (8, 0)


class Packed(NamedTuple):
    """Places of the texts. They are in the order of their lengths, so that those of one length are neighbors."""

    places: Tensor
    """(tokens,) position of each token in its text."""
    starts: Tensor
    """(texts,) of each text in the order of the batch: its first token."""
    bounds: Tensor
    """(texts + 1,) int32: where a text ends and the next one begins, in the order of the row."""
    longest: int
    """No text has more tokens; the same for all batches, so that nothing waits for the device to learn it."""


def attend(query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: float) -> Tensor:
    """Scaled dot-product attention of (tokens, heads, width of a head), and the same shape."""
    found: Tensor
    if query.device.type == "cpu":
        found = by_length(query, key, value, packed, dropout)
    elif not dropout and _has_varlen(query):
        bounds, longest = packed.bounds, packed.longest
        found = cast(Tensor, varlen_attn(query, key, value, bounds, bounds, longest, longest))
    else:
        found = nested(query, key, value, packed, dropout)
    return found


def _has_varlen(query: Tensor) -> bool:
    """Return whether torch's attention for texts of many lengths can compute this. It has no dropout (torch 2.13)."""
    width = query.shape[-1]
    fits = query.dtype in HALF and width % 8 == 0 and width <= 256
    return bool(fits and torch.cuda.get_device_capability(query.device) >= AMPERE)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no type for it
def by_length(query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: float) -> Tensor:
    """Attend on a CPU: one call for the texts of each length."""
    lengths = [end - begin for begin, end in pairwise(packed.bounds.tolist())]
    at, parts = 0, []
    for length, same in groupby(lengths):
        texts = len(list(same))
        here = slice(at, at + texts * length)
        q, k, v = (part[here].view(texts, length, *part.shape[1:]).transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        parts.append(mixed.transpose(1, 2).flatten(0, 1))
        at = here.stop
    return torch.cat(parts)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no type for it
def nested(query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: float) -> Tensor:
    """Use torch's nested tensors: flash attention with dropout, or the efficient kernel where there is no flash."""
    parts = [
        torch.nested.nested_tensor_from_jagged(part, packed.bounds, min_seqlen=1, max_seqlen=packed.longest)
        for part in (query, key, value)
    ]
    q, k, v = (part.transpose(1, 2) for part in parts)
    mixed: Tensor = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2)
    return mixed.values()
