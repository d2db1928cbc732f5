"""Peak rate of a GPU, by which a run's share of it (MFU, model FLOPs utilization) is computed.

A rate is multiprocessors × clock × operations of a multiprocessor in a clock, without sparsity. The operations are
those of NVIDIA's architecture whitepapers (V100, Turing, A100, GA102, Ada, H100, RTX Blackwell). The clock is the boost
clock in the card's BIOS, which CUDA reports, of a laptop's card as well; not NVML's highest clock, which is 3.1 GHz for
an RTX 4090, while its data sheet counts with 2.52.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import torch


class CardProperties(Protocol):
    """Result of `torch.cuda.get_device_properties`, or what is read of it. `clock_rate`, in kHz, may be missing."""

    @property
    def name(self) -> str: ...

    @property
    def major(self) -> int: ...

    @property
    def minor(self) -> int: ...

    @property
    def multi_processor_count(self) -> int: ...


class Operations(NamedTuple):
    """Floating-point operations of a multiprocessor in a clock."""

    half: int
    """Rate of Tensor Cores: float16 (from 8.0 on also bfloat16) summed in float32, as torch sums; from 8.0 on half as
    many in TF32."""
    single: int
    """float32 outside of them."""
    names: str
    """Pattern of the names of cards that have this rate: others of their capability lack Tensor Cores (GTX 16, T1000)
    or have slower ones."""


OPERATIONS = {
    (7, 0): Operations(1024, 128, r"V100"),
    (7, 5): Operations(1024, 128, r"RTX|T4"),
    (8, 0): Operations(2048, 128, r"A100|A800|A30"),
    (8, 6): Operations(1024, 256, r"RTX|A2|A10|A16|A40"),
    (8, 9): Operations(1024, 256, r"RTX|L4|L40|L40S"),
    (9, 0): Operations(4096, 256, r"H100|H200|H800|GH200"),
    (10, 0): Operations(8192, 256, r"B200|GB200"),
    (12, 0): Operations(1024, 256, r"RTX"),
}
HALVED = r"GeForce|L40"
"""Cards of 7.5, 8.6, 8.9 and 12.0 with half of these operations where they sum in float32."""
TENSOR_CLOCKS = {
    r"H100 PCIe": 1.62e9,  # 756 TFLOP/s
    r"H100 NVL|H200 NVL": 1.545e9,  # 835
    r"H100|H200|H800|GH200": 1.83e9,  # 989
    r"B200": 1.856e9,  # 2250
    r"GB200": 2.0e9,  # 2500
}
"""Clock by which the data sheet's figure for Tensor Cores is computed, of cards where it is lower than CUDA's (1.98 GHz
for an H100): by a part of the name; of several that fit, the first counts."""
PLAUSIBLE_HZ = 0.5e9, 4e9
"""Range of clocks: a number outside is not in kHz, and the rate is not known."""


def peak_flops(card: CardProperties, dtype: torch.dtype, *, tf32: bool) -> float:
    """Peak FLOP/s of a card for matrix products of this type; 0: not known. `tf32`: whether float32 may be multiplied
    in Tensor Cores."""
    capability, clock = (card.major, card.minor), 1e3 * float(getattr(card, "clock_rate", 0))
    operations = OPERATIONS.get(capability)
    known = operations is not None and _named(operations.names, card.name) and "GTX" not in card.name
    if operations is None or not known or not PLAUSIBLE_HZ[0] <= clock <= PLAUSIBLE_HZ[1]:
        return 0.0
    ampere = capability >= (8, 0)
    if dtype is torch.float32 and not (tf32 and ampere):
        return card.multi_processor_count * clock * operations.single
    if dtype is torch.bfloat16 and not ampere:
        return 0.0
    halved = 2 if _named(HALVED, card.name) else 1
    clock = next((hz for names, hz in TENSOR_CLOCKS.items() if _named(names, card.name)), clock)
    rate = card.multi_processor_count * clock * operations.half / halved
    return rate / 2 if dtype is torch.float32 else rate


def _named(names: str, name: str) -> bool:
    return re.search(rf"\b(?:{names})\b", name) is not None
