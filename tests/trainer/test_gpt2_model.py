"""The model: its size, what it may look at, and how it writes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from trainer.models.gpt2 import GPT2, Gpt2Shape
from trainer.workloads.gpt2 import PRESETS

SMALL = Gpt2Shape(layers=2, heads=2, width=16, seq_len=8, vocab_size=50)


def test_the_124m_preset_has_gpt2_smalls_shapes() -> None:
    preset = PRESETS["124m"]
    with torch.device("meta"):
        model = GPT2(
            Gpt2Shape(layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=1024, vocab_size=50257)
        )
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_no_position_sees_what_comes_after_it() -> None:
    torch.manual_seed(0)
    model = GPT2(SMALL).eval()
    tokens = torch.randint(50, (1, 8))
    changed = tokens.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_an_untrained_model_knows_nothing() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(50, (16, 8))
    loss = F.cross_entropy(GPT2(SMALL)(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
    assert abs(loss.item() - math.log(50)) < 0.1
