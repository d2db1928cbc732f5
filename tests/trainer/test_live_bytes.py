"""Bytes that a step's tensors take at a time, counted without computing anything."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.live_bytes import CONTEXT_MIB, LiveBytes, other_bytes, peak_of_passes
from contract.cost_model.memory import MIB
from trainer.models.gpt2 import Computation, Gpt2Shape

GPT2_SMALL = Gpt2Shape(layers=12, heads=12, width=768, seq_len=1024, vocab_size=50257)
CARD_MIB = 4096


def test_a_storage_counts_until_its_last_view_is_gone() -> None:
    with FakeTensorMode(), LiveBytes() as live:
        whole = torch.empty(1024)
        view = whole.view(32, 32)[:3]
        del whole
        assert live.now == 4096
        doubled = view * 2
        assert live.now == 4096 + 512  # 384 bytes, rounded up
        del view, doubled
        assert (live.now, live.peak) == (0, 4096 + 512)


def test_a_card_of_four_gigabytes_trains_gpt2_small_with_a_compressed_exchange() -> None:
    how = Computation(gradient_checkpointing=1, loss_chunk=256)
    passes = peak_of_passes(GPT2_SMALL, how, micro_batch=1)
    usual = peak_of_passes(GPT2_SMALL, Computation(loss_chunk=1024), micro_batch=1)
    assert passes < usual
    assert (passes + sum(other_bytes(GPT2_SMALL, "int8"))) / MIB + CONTEXT_MIB < CARD_MIB
    assert (usual + sum(other_bytes(GPT2_SMALL, "fp32"))) / MIB + CONTEXT_MIB > CARD_MIB
