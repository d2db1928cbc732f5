"""The model computes on a GPU what it computes on a CPU."""

from __future__ import annotations

import pytest
import torch

from trainer.models.gpt2 import GPT2, Gpt2Shape

SHAPE = Gpt2Shape(layers=2, heads=2, width=64, seq_len=64, vocab_size=512)


def test_loss_and_gradients_are_the_cpus() -> None:
    losses, gradients = {}, {}
    tokens = torch.randint(0, SHAPE.vocab_size, (4, SHAPE.seq_len + 1), generator=torch.Generator().manual_seed(0))
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = GPT2(SHAPE).to(device)
        given = tokens.to(device)
        loss = model(given[:, :-1], given[:, 1:]) / tokens[:, 1:].numel()
        loss.backward()
        losses[device] = float(loss.detach())
        gradients[device] = torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-5)
    torch.testing.assert_close(gradients["cuda"], gradients["cpu"], rtol=1e-3, atol=1e-6)
