"""Moments in fewer bits, on a GPU: the updates of a CPU, less memory, no wait."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.engine.optimization.compact import ADAMW, CompactOptimizer
from trainer.engine.optimization.moment_formats import FORMATS

SIZES = ((3000, 4000), (700, 300), (10,))


def stepped(device: str, how: str, *, compiled: bool = False) -> tuple[list[torch.Tensor], int]:
    """Weights after four steps, the third of them skipped, and the peak of memory beyond weights and gradients."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(size).to(device)) for size in SIZES]
    groups = [{"params": weights, "weight_decay": 0.1, "lr": 1e-2}]
    defaults = {"betas": (0.9, 0.95), "eps": 1e-8}
    optimizer = CompactOptimizer(groups, ADAMW, defaults, FORMATS[how], compiled=compiled)
    for weight in weights:
        weight.grad = weight.detach() * 0.5
    void = torch.tensor([0.0, 0.0, 1.0, 0.0], device=device)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    for step in range(4):
        optimizer.found_inf = void[step]
        optimizer.step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
    assert optimizer._compiled == compiled
    return [weight.detach().cpu() for weight in weights], peak


@pytest.mark.parametrize("how", FORMATS)
def test_updates_are_the_cpus(how: str) -> None:
    expected, _ = stepped("cpu", how)
    found, _ = stepped("cuda", how)
    for one, cpu in zip(found, expected, strict=True):
        assert (one - cpu).norm() < 1e-3 * cpu.norm()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("how", FORMATS)
def test_compiled_updates_are_near(how: str) -> None:
    expected, _ = stepped("cuda", how)
    found, _ = stepped("cuda", how, compiled=True)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 1e-3 * other.norm()


def test_fewer_bits_take_less_memory() -> None:
    peaks = [stepped("cuda", how)[1] for how in FORMATS]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.6 * peaks[0]


@pytest.mark.parametrize("how", FORMATS)
def test_no_update_waits(how: str) -> None:
    weight = nn.Parameter(torch.randn(3000, 4000, device="cuda"))
    weight.grad = torch.ones_like(weight)
    groups = [{"params": [weight], "weight_decay": 0.1, "lr": 1e-2}]
    optimizer = CompactOptimizer(groups, ADAMW, {"betas": (0.9, 0.95), "eps": 1e-8}, FORMATS[how])
    optimizer.found_inf = torch.zeros((), device="cuda")
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
