"""A model writes on a GPU as on a CPU, and is hardly waited for."""

from __future__ import annotations

import pytest
import torch

from trainer.models.gpt2 import ENDED_LOOK_EVERY, GPT2, Gpt2Shape, Sampling, generate

SHAPE = Gpt2Shape(layers=2, heads=2, width=32, seq_len=16, vocab_size=50)
LIKELIEST = Sampling(temperature=0)


def a_model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(SHAPE).double()


def test_the_likeliest_tokens_are_the_cpus() -> None:
    prompts = torch.randint(50, (3, 4), generator=torch.Generator().manual_seed(1))
    on_cpu, on_gpu = (generate(a_model().to(device), prompts, 40, LIKELIEST, seed=1) for device in ("cpu", "cuda"))
    assert on_gpu.tolist() == on_cpu.tolist()


def test_a_seed_repeats_its_text() -> None:
    model, prompts = a_model().cuda(), torch.randint(50, (2, 4))
    first, again, other = (generate(model, prompts, 20, Sampling(), seed).tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_tokens_are_not_waited_for() -> None:
    model, prompts = a_model().cuda(), torch.randint(50, (2, 4), device="cuda")
    generate(model, prompts, 2, Sampling(), seed=1, end=49)
    torch.cuda.set_sync_debug_mode("error")
    try:
        generate(model, prompts, ENDED_LOOK_EVERY - 1, Sampling(top_k=9, top_p=0.9), seed=1, end=49)
        with pytest.raises(RuntimeError, match="synchroniz"):
            generate(model, prompts, ENDED_LOOK_EVERY, Sampling(), seed=1, end=49)
    finally:
        torch.cuda.set_sync_debug_mode("default")
