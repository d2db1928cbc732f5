"""Choice of the precision, and refusals whatever the user requests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.engine.hardware.precision import GpuModel, choose_dtype, cpu_flags, has_native_bf16
from trainer.errors import ConfigurationError, OptionError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("precision", "capability", "dtype"),
    [
        ("auto", (9, 0), torch.bfloat16),
        ("auto", (8, 0), torch.bfloat16),
        ("auto", (7, 5), torch.float16),
        ("auto", (7, 0), torch.float16),
        ("auto", (6, 1), torch.float32),
        ("bf16", (8, 6), torch.bfloat16),
        ("fp16", (8, 6), torch.float16),
        ("fp32", (8, 6), torch.float32),
    ],
)
def test_on_a_gpu(precision: str, capability: tuple[int, int], dtype: torch.dtype) -> None:
    assert choose_dtype(precision, GPU, gpu=GpuModel(capability=capability))[0] is dtype


def test_a_gtx_16_has_no_tensor_cores_whatever_its_number() -> None:
    gtx, rtx = (GpuModel(capability=(7, 5), name=f"NVIDIA GeForce {name}") for name in ("GTX 1660 Ti", "RTX 2070"))
    assert choose_dtype("auto", GPU, gpu=gtx) == (torch.float32, "no Tensor Cores")
    assert choose_dtype("fp16", GPU, gpu=gtx)[0] is torch.float16
    assert choose_dtype("auto", GPU, gpu=rtx)[0] is torch.float16


def test_a_gpu_that_only_emulates_bf16() -> None:
    with pytest.raises(ConfigurationError, match=r"compute capability 7\.5\) is older than Ampere .* --precision fp16"):
        choose_dtype("bf16", GPU, gpu=GpuModel(capability=(7, 5)))


@pytest.mark.parametrize(
    ("precision", "native", "dtype", "why"),
    [
        ("auto", True, torch.bfloat16, "native on this CPU"),
        ("auto", False, torch.float32, "this CPU has no native bfloat16"),
        ("bf16", True, torch.bfloat16, "asked for"),
        ("fp32", True, torch.float32, "asked for"),
    ],
)
def test_on_a_cpu(precision: str, native: bool, dtype: torch.dtype, why: str) -> None:
    assert choose_dtype(precision, CPU, native_bf16=native) == (dtype, why)


def test_what_a_cpu_emulates_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="28 times slower") as bf16:
        choose_dtype("bf16", CPU, native_bf16=False)
    with pytest.raises(ConfigurationError, match="CPUs emulate it"):
        choose_dtype("fp16", CPU, native_bf16=True)
    assert bf16.value.exit_code == 3


@pytest.mark.parametrize("device", [CPU, GPU])
def test_no_amp(device: torch.device) -> None:
    assert choose_dtype("auto", device, amp=False)[0] is torch.float32
    with pytest.raises(OptionError, match="contradict"):
        choose_dtype("bf16", device, amp=False)


def test_an_unknown_precision() -> None:
    with pytest.raises(OptionError, match="expected one of auto, fp32, bf16, fp16"):
        choose_dtype("fp8", CPU)


@pytest.mark.parametrize(
    ("text", "native"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 sha\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f amx_bf16 amx_tile\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw avx512vl avx512dq\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("", False),
    ],
)
def test_cpuinfo(tmp_path: Path, text: str, native: bool) -> None:
    """AVX-512 alone is not enough, though oneDNN says that it supports bfloat16 there."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)
    supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    assert has_native_bf16(cpuinfo) is (native and supported)
    assert bool({"avx512_bf16", "amx_bf16", "bf16"} & cpu_flags(cpuinfo)) is native


def test_no_cpuinfo(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path / "nothing") == frozenset()
