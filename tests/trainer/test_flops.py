"""Operations of a training, and its share of a GPU's peak rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.conftest import Call
from trainer.engine.hardware import device
from trainer.engine.hardware.peaks import peak_flops
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape

GPT2_SMALL = Gpt2Shape(layers=12, heads=12, width=768, seq_len=1024, vocab_size=50257)


def test_operations_of_gpt2_are_those_of_the_paper() -> None:
    assert GPT2_SMALL.flops_per_token == pytest.approx(0.854e9, rel=1e-3)


def test_operations_of_gpt2_are_those_that_torch_counts() -> None:
    shape = replace(GPT2_SMALL, layers=2, heads=2, width=64, seq_len=64, vocab_size=640)
    model, tokens = GPT2(shape, 0.0, Computation(loss_chunk=0)), torch.zeros(2, 64, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    assert counter.get_total_flops() / tokens.numel() == pytest.approx(shape.flops_per_token, rel=0.01)


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, True, 989e12),
        ("NVIDIA H100 PCIe", torch.bfloat16, True, 756e12),
        ("NVIDIA A100-SXM4-40GB", torch.float32, True, 156e12),
        ("NVIDIA A100-SXM4-40GB", torch.float32, False, 19.5e12),
        ("NVIDIA L4", torch.bfloat16, True, 121e12),
        ("NVIDIA L40S", torch.bfloat16, True, 362e12),
        ("Tesla T4", torch.float32, True, 8.1e12),
        ("NVIDIA GeForce RTX 4090", torch.float16, True, 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.float16, True, 0.0),
        ("NVIDIA T400", torch.float16, True, 0.0),
    ],
)
def test_peak_rates(name: str, dtype: torch.dtype, tf32: bool, peak: float) -> None:
    assert peak_flops(name, dtype, tf32=tf32) == pytest.approx(peak)


def test_a_run_has_its_rate_and_its_share_of_the_peak(
    train: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = train(tmp_path / "cpu", "--max-steps", "2")
    assert usual.code == 0, usual.err
    (step,) = [event for event in usual.events("step") if event["step"] == 2]
    assert step["tflops"] > 0
    assert "mfu" not in step
    assert "MFU" not in usual.out
    monkeypatch.setattr(device.Hardware, "peak_flops", 1e9)
    known = train(tmp_path / "known", "--max-steps", "2")
    (step,) = [event for event in known.events("step") if event["step"] == 2]
    assert step["mfu"] == pytest.approx(step["tflops"] * 1e3)
    assert f"  {step['mfu']:.0%} MFU" in known.out
