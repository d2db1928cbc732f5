"""Operations of a training step, and the peak rate of this machine: the two sides of utilization."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

DENSE_BF16 = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "3090": 71e12, "4090": 165e12}
"""Peaks as NVIDIA's data sheets state them, without sparsity."""


@dataclass(frozen=True, kw_only=True)
class GptShape:
    layers: int
    heads: int
    width: int
    seq_len: int
    vocab_size: int

    def flops_per_token(self) -> float:
        """Forward and backward: 6 for each weight of a matrix product and 12·layers·length·width for attention,
        causal or not (PaLM, appendix B): 0.854 GFLOP for GPT-2 124M at a length of 1024."""
        weights = self.vocab_size * self.width + self.layers * 12 * self.width**2
        return 6.0 * weights + 12.0 * self.layers * self.seq_len * self.width


def utilisation(flops_per_s: float) -> dict[str, float | str]:
    """Share of the rate of one large matrix product in the same process after its steps, and of the GPU's peak."""
    import torch

    columns: dict[str, float | str] = {"GFLOP/s": flops_per_s / 1e9}
    if torch.cuda.is_available():
        columns["of bf16 GEMM"] = flops_per_s / gemm_rate(torch.bfloat16, "cuda", 8192)
        name = torch.cuda.get_device_name()
        peak = next((peak for part, peak in DENSE_BF16.items() if part in name), None)
        if peak:
            columns["MFU"] = flops_per_s / peak
    else:
        sgemm = gemm_rate(torch.float32, "cpu", 2048)
        columns |= {"SGEMM GFLOP/s": sgemm / 1e9, "of SGEMM": flops_per_s / sgemm}
    return columns


def gemm_rate(dtype: Any, device: str, size: int, trials: int = 7) -> float:
    """FLOP/s of the best trial: other load on the machine can only lower it."""
    import torch

    from benchmarks.stopwatch import synchronize

    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    a @ b
    best = float("inf")
    for _ in range(trials):
        synchronize()
        began = time.perf_counter()
        a @ b
        synchronize()
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best
