"""A GPU's weights and a CPU's are the same but for rounding, and the check of that costs little."""

from __future__ import annotations

import time

import pytest
import torch

from trainer.engine.weights import apart, checksum
from trainer.models.gpt2 import GPT2, Gpt2Shape

SHAPE = Gpt2Shape(layers=2, heads=4, width=256, seq_len=64, vocab_size=1024)


def test_many_updates_on_a_gpu_and_on_a_cpu_are_no_drift() -> None:
    sums = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = GPT2(SHAPE).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
        for step in range(30):
            chance = torch.Generator().manual_seed(step)
            for parameter in model.parameters():  # the same gradient, as an exchange gives it
                parameter.grad = torch.randn(parameter.shape, generator=chance).to(device)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        sums.append(checksum(model.parameters()))
    assert apart(sums) == []
    with torch.no_grad():
        model.tokens.weight.mul_(1.01)
    assert apart([sums[0], sums[0], checksum(model.parameters())]) == [2]


@pytest.mark.alone
def test_a_checksum_takes_milliseconds() -> None:
    weights = [torch.randn(1 << 24, device="cuda") for _ in range(8)]
    checksum(weights)
    began = time.perf_counter()
    checksum(weights)
    assert time.perf_counter() - began < 0.1
