"""Share of this machine's rate that a training reaches."""

from __future__ import annotations

import time
from typing import Any


def utilisation(flops_per_s: float) -> dict[str, float | str]:
    """Share of the rate of one large matrix product in the same process after its steps, and of the GPU's peak."""
    import torch

    columns: dict[str, float | str] = {"GFLOP/s": flops_per_s / 1e9}
    if torch.cuda.is_available():
        columns["of bf16 GEMM"] = flops_per_s / gemm_rate(torch.bfloat16, "cuda", 8192)
        from trainer.engine.hardware.peaks import peak_flops

        if peak := peak_flops(torch.cuda.get_device_properties(), torch.bfloat16, tf32=True):
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


def copy_rate(device: str, size: int, trials: int = 7) -> float:
    """Bytes read and written per second by a copy of `size` bytes within the device's memory, in the best trial."""
    import torch

    from benchmarks.stopwatch import synchronize

    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(trials):
        synchronize()
        began = time.perf_counter()
        target.copy_(source)
        synchronize()
        best = min(best, time.perf_counter() - began)
    return 2.0 * size / best
