"""Vision transformers (Dosovitskiy et al. 2020) with normalization before each part; they classify the mean patch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.errors import OptionError
from trainer.models.layers import INIT_STD, Recompute, RecomputedBlock, initialize_truncated, join_heads, recompute


@dataclass(frozen=True, kw_only=True)
class VitShape:
    patch: int
    width: int
    layers: int
    heads: int


SHAPES = {
    "vit-mini": VitShape(patch=4, width=96, layers=6, heads=3),
    "vit-tiny": VitShape(patch=16, width=192, layers=12, heads=3),
    "vit-small": VitShape(patch=16, width=384, layers=12, heads=6),
    "vit-base": VitShape(patch=16, width=768, layers=12, heads=12),
}
"""`vit-mini` is for images of 28 to 32 pixels."""


class ViT(nn.Module):
    def __init__(
        self, shape: VitShape, channels: int, classes: int, image_size: int, checkpointing: Recompute = 0
    ) -> None:
        super().__init__()
        if image_size % shape.patch:
            raise OptionError(f"--image-size {image_size} does not divide into patches of {shape.patch} pixels")
        self.patches = nn.Conv2d(channels, shape.width, shape.patch, stride=shape.patch)
        self.positions = nn.Parameter(torch.zeros(1, (image_size // shape.patch) ** 2, shape.width))
        self.blocks = nn.ModuleList(VitBlock(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, classes)
        recompute(self.blocks, checkpointing)
        nn.init.trunc_normal_(self.positions, std=INIT_STD)
        self.apply(initialize_truncated)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class VitBlock(RecomputedBlock):
    draws = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm_before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def compute(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        parts = self.query_key_value(self.norm_before_attention(x))
        query, key, value = parts.view(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.attended(join_heads(F.scaled_dot_product_attention(query, key, value)))
        out: Tensor = x + self.mlp(self.norm_before_mlp(x))
        return out
