"""Precision in which matrices are multiplied. The weights stay float32 in any case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.errors import ConfigurationError, OptionError

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
NATIVE_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of native bfloat16 in /proc/cpuinfo: on x86 the first two, on ARM the last."""

Chosen = tuple[torch.dtype, str]
"""The type, and why it was chosen."""


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    capability: tuple[int, int]
    name: str = ""

    @classmethod
    def of(cls, device: torch.device) -> GpuModel:
        return cls(capability=torch.cuda.get_device_capability(device), name=torch.cuda.get_device_name(device))

    @property
    def tensor_cores(self) -> bool:
        """True from Volta on, except for the GTX 16 series: it calls itself 7.5 like any Turing card, and has none."""
        return self.capability >= (7, 0) and "GTX 16" not in self.name


def choose_dtype(
    precision: str,
    device: torch.device,
    *,
    amp: bool = True,
    native_bf16: bool | None = None,
    gpu: GpuModel | None = None,
) -> Chosen:
    """The last two are what the CPU and the GPU are capable of; None: asked of them."""
    if precision not in PRECISIONS:
        raise OptionError(f"--precision {precision}: expected one of {', '.join(PRECISIONS)}")
    if not amp and precision in ("bf16", "fp16"):
        raise OptionError(f"--no-amp and --precision {precision} contradict each other: leave one of them out")
    if precision == "fp32" or not amp:
        return torch.float32, "asked for"
    if device.type == "cuda":
        return _on_gpu(precision, gpu or GpuModel.of(device))
    return _on_cpu(precision, has_native_bf16() if native_bf16 is None else native_bf16)


def _on_gpu(precision: str, gpu: GpuModel) -> Chosen:
    ampere = gpu.capability >= (8, 0)
    if precision == "auto":
        if ampere:
            return torch.bfloat16, "Ampere or newer"
        if not gpu.tensor_cores:
            return torch.float32, "no Tensor Cores"
        return torch.float16, "older than Ampere; gradients are scaled"
    if precision == "bf16" and not ampere:
        raise ConfigurationError(
            f"--precision bf16: this GPU (compute capability {'.'.join(map(str, gpu.capability))}) is older than Ampere"
            " (8.0) and only emulates it: use --precision fp16, or auto"
        )
    return (torch.bfloat16 if precision == "bf16" else torch.float16), "asked for"


def _on_cpu(precision: str, native_bf16: bool) -> Chosen:
    """Emulated types are refused, and no option overrides it: they are too slow to be of use."""
    if precision == "fp16":
        raise ConfigurationError(
            "--precision fp16: CPUs emulate it, some 100 times slower than float32: use --precision fp32, or auto"
        )
    if native_bf16:
        return torch.bfloat16, "asked for" if precision == "bf16" else "native on this CPU"
    if precision == "bf16":
        raise ConfigurationError(
            "--precision bf16: this CPU has neither avx512_bf16 nor amx_bf16 and would emulate it, 28 times slower in"
            " training and 200 times in matrix products (pytorch/pytorch#118499): use --precision fp32, or auto"
        )
    return torch.float32, "this CPU has no native bfloat16"


def has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether both the CPU and torch's oneDNN do it. oneDNN alone says yes for any AVX-512, and then
    emulates."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(NATIVE_BF16 & cpu_flags(cpuinfo))


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text("utf-8", errors="replace").splitlines()
    except OSError:  # no Linux: nothing is known, so nothing is claimed
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())
