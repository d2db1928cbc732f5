"""Formats of an optimizer's moments: float32, bfloat16, and 8 bits in blocks that share an exponent.

A value loses its low bits by rounding up or down in proportion to its distance from both neighbours. A moving average
that changes by less than half a step of the format would never change if each value went to the nearest one: with beta
0.999, bfloat16 never forgets. What decides between up and down are low-discrepancy numbers that follow from the number
of the step and the place in the block: the same on all ranks and devices, and after a resume, at no cost of memory.

8 bits are a small floating-point number below the block's largest exponent: for signed values 3 bits of mantissa, for
square roots of second moments 4, each over 16 powers of two. So every value has the same relative error, however much
larger its neighbours are; a linear code would make zeros of the small second moments by which updates are divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.data.to_device import to_device

BLOCK = 256
"""Values that share an exponent."""
EXPONENTS = "_exponents"
"""Ending of the state's entry with a moment's exponents."""
OCTAVES = 16
MANTISSA = (3, 4)
"""Bits of mantissa of signed values, and of roots, which need no sign."""
LEAST = (16, 79)
"""Smallest exponents of a block, biased as float32's are: below, values or their squares would be subnormal."""
_RATIO = 1.3247179572447460
"""Ratio of the additive recurrence whose points fill a square most evenly."""
_WORD = 1 << 32


def rounding(step: Tensor) -> tuple[Tensor, Tensor]:
    """Two int64 vectors of `BLOCK` numbers from 0 to 2³² - 1, for the first and the second moment at this step."""
    places = torch.arange(BLOCK, device=step.device)
    whole = step.to(torch.int64)
    strides = [int(_WORD / _RATIO**power) | 1 for power in (1, 2)]
    # The other ratio along a block than along the steps.
    first, second = ((places * strides[1 - n] + whole * strides[n]) % _WORD for n in (0, 1))
    return first, second


@dataclass(frozen=True)
class MomentFormat:
    name: str
    dtype: torch.dtype

    @property
    def bytes_per_value(self) -> float:
        return self.dtype.itemsize + (1 / BLOCK if self.name == "int8" else 0)

    def decode(self, codes: Tensor, exponents: Tensor | None, *, squares: bool) -> Tensor:
        """float32 values of `codes`, whose number is a multiple of `BLOCK`."""
        if exponents is None:
            return codes.float()
        scale = (exponents.int() << 23).view(torch.float32)
        values = _table(codes.device, squares=squares)[codes.int()].view(-1, BLOCK) * scale.view(-1, 1)
        return (values * values if squares else values).view(codes.shape)

    def encode(self, values: Tensor, chance: Tensor, *, squares: bool) -> tuple[Tensor, Tensor | None]:
        """Codes of float32 `values`, and the exponents of their blocks. `chance`: of `rounding`; 2³¹: to the
        nearest."""
        if self.name == "fp32":
            return values, None
        if self.name == "bf16":
            bits = values.view(-1, BLOCK).view(torch.int32) + (chance >> 16).int()
            return (bits & -0x10000).view(torch.float32).view(values.shape).bfloat16(), None
        mantissa = MANTISSA[squares]
        bits = (values.sqrt() if squares else values).view(-1, BLOCK).view(torch.int32)
        magnitudes = bits & 0x7FFFFFFF
        step = 1 << (23 - mantissa)
        # One more where the largest is beyond the last code below the next power of two: it may be rounded up to that.
        top = ((magnitudes.amax(1, keepdim=True) + (step - 1)) >> 23).clamp_min(LEAST[squares])
        levels = ((magnitudes + (chance >> (9 + mantissa)).int()) >> (23 - mantissa)) - (
            (top - (OCTAVES - 1)) << mantissa
        )
        levels = levels.clamp(0, (OCTAVES << mantissa) - 1)
        # Roots up, not to zero: what is divided by them must not become large.
        levels = torch.maximum(levels, magnitudes.clamp_max(1)) if squares else levels | ((bits >> 31) & 128)
        return levels.to(torch.uint8).view(values.shape), top.to(torch.uint8).view(-1)


_TABLES: dict[tuple[bool, str], Tensor] = {}


def _table(device: torch.device, *, squares: bool) -> Tensor:
    """Values of the 256 codes in a block whose exponent is that of 1."""
    key = (squares, str(device))
    if key not in _TABLES:
        mantissa = MANTISSA[squares]
        levels = range(1, OCTAVES << mantissa)
        found = [
            0.0,
            *(
                math.ldexp((1 << mantissa) + n % (1 << mantissa), (n >> mantissa) - OCTAVES + 1 - mantissa)
                for n in levels
            ),
        ]
        _TABLES[key] = to_device(found if squares else [*found, *(-value for value in found)], device)
    return _TABLES[key]


FORMATS = {
    "fp32": MomentFormat("fp32", torch.float32),
    "bf16": MomentFormat("bf16", torch.bfloat16),
    "int8": MomentFormat("int8", torch.uint8),
}
SQUARES = ("exp_avg_sq",)
"""Moments of which 8 bits hold the square root."""


def padded(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


def in_blocks(values: Tensor) -> Tensor:
    """(n,) values, and zeros up to a whole number of blocks."""
    flat = values.flatten()
    return F.pad(flat, (0, padded(len(flat)) - len(flat)))


def format_of(state: Mapping[Any, Mapping[str, Any]]) -> str:
    """Name of the format in which the `state` of an optimizer's state_dict is."""
    entries = [entry for one in state.values() for entry in one.items() if isinstance(entry[1], Tensor)]
    if any(name.endswith(EXPONENTS) for name, _ in entries):
        return "int8"
    return "bf16" if any(value.dtype is torch.bfloat16 for _, value in entries) else "fp32"


def as_float32(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The state of one parameter as torch's own optimizers keep it."""
    return {
        name: _decoded(name, value, entry.get(name + EXPONENTS)) if isinstance(value, Tensor) and value.dim() else value
        for name, value in entry.items()
        if not name.endswith(EXPONENTS)
    }


def _decoded(name: str, codes: Tensor, exponents: Tensor | None) -> Tensor:
    flat = FORMATS["int8"].decode(in_blocks(codes), exponents, squares=name in SQUARES)
    return flat[: codes.numel()].view(codes.shape)
