"""Peak rates of GPUs, by which a run's share of them (MFU, model FLOPs utilization) is computed.

Without sparsity, as in the data sheets and architecture whitepapers of NVIDIA (Ampere GA102, Ada). A GeForce card that
multiplies float16 at half the rate where it sums in float32 counts with that rate: torch sums so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch


class PeakRates(NamedTuple):
    half: float
    """bfloat16 or float16 in Tensor Cores."""
    tf32: float
    """float32 in Tensor Cores; 0: the card has no such units."""
    single: float
    """float32 outside of them."""


TERA = 1e12
PEAKS = {
    "H100 PCIe": PeakRates(756, 378, 51),
    "H100 NVL": PeakRates(835, 417, 60),
    "H100": PeakRates(989, 494, 67),
    "H200": PeakRates(989, 494, 67),
    "A100": PeakRates(312, 156, 19.5),
    "A30": PeakRates(165, 82, 10.3),
    "A40": PeakRates(149.7, 74.8, 37.4),
    "A10": PeakRates(125, 62.5, 31.2),
    "L40S": PeakRates(362, 183, 91.6),
    "L40": PeakRates(181, 90.5, 90.5),
    "L4": PeakRates(121, 60, 30.3),
    "V100": PeakRates(125, 0, 15.7),
    "T4": PeakRates(65, 0, 8.1),
    "RTX 3090": PeakRates(71, 35.6, 35.6),
    "RTX 4090": PeakRates(165.2, 82.6, 82.6),
}
"""In TFLOP/s, by a part of the card's name; of several that fit, the first counts."""


def peak_flops(name: str, dtype: torch.dtype, *, tf32: bool) -> float:
    """Peak FLOP/s of a card for matrix products of this type; 0: the card is not known. `tf32`: whether float32 may be
    multiplied in Tensor Cores."""
    of_a_laptop = "Laptop" in name or "Max-Q" in name  # of the same name, and slower
    found = next((rates for part, rates in PEAKS.items() if re.search(rf"\b{part}\b", name) and not of_a_laptop), None)
    if found is None:
        return 0.0
    if dtype is not torch.float32:
        return found.half * TERA
    return (found.tf32 if tf32 and found.tf32 else found.single) * TERA
