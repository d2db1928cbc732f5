"""Kernel of scaled dot-product attention: torch's own choice, or the one that was asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.errors import OptionError

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("auto", "flash", "math")


def must_have_kernel(sdpa: str, device_type: str) -> None:
    """torch itself reports a kernel that does not exist only in the first step, and not which ones do."""
    if device_type == "cpu" and sdpa not in ON_CPU:
        raise OptionError(f"--sdpa {sdpa}: a CPU has only {', '.join(ON_CPU)}")


def attention_by(sdpa: str, *, same_shapes: bool) -> AbstractContextManager[object]:
    """Context in which all threads of this process compute attention by the kernel of this name; where that cannot
    compute something, it fails. Not for forward passes alone: with gradient checkpointing, the backward pass computes
    attention as well.

    "auto" is torch's own order of kernels, without cuDNN's where shapes vary: it prepares each new one, and a step of
    BERT-base over texts of all lengths took 57 ms in place of 35 (an H200, docs/benchmarks.md).
    """
    if sdpa != "auto":
        return sdpa_kernel(KERNELS[sdpa])
    if same_shapes:
        return nullcontext()
    return sdpa_kernel([*(kernel for name, kernel in KERNELS.items() if name != "cudnn"), SDPBackend.OVERRIDEABLE])
