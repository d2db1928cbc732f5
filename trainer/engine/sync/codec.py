"""Numbers as fewer bytes, and back: what ranks send each other instead of float32.

A codec alone loses something of every value. Whoever encodes keeps what was lost and adds it to the next values (error
feedback: Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al., arXiv 1901.09847), so that the sum
of all that was sent follows the sum of all that was given. For that each codec here loses less than there was: the
lost part of a block is never longer, as a vector, than the block.

A payload means the same on every device. A value that is infinite or no number makes its whole block come out so:
never as a number that could pass for a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 1 << 18
"""Values that a CPU takes at a time, so that what lies between two operations stays in its cache."""
SMALLEST = torch.finfo(torch.bfloat16).tiny
LARGEST_HALF = torch.finfo(torch.float16).max


class Codec(Protocol):
    """`encode` gives the same payload for the same values, and its length depends on their number alone."""

    name: str

    def encode(self, values: Tensor) -> Tensor:
        """(count,) float32, on any device, to (payload_bytes(count),) uint8 on that device."""

    def decode(self, payload: Tensor, count: int) -> Tensor:
        """The payload that `encode` gave for `count` values, to (count,) float32."""

    def payload_bytes(self, count: int) -> int: ...


class FloatCodec:
    """The values as they are, to the last bit."""

    name = "fp32"

    def encode(self, values: Tensor) -> Tensor:
        return values.view(torch.uint8)

    def decode(self, payload: Tensor, count: int) -> Tensor:
        return _aligned(payload[: 4 * count], torch.float32)

    def payload_bytes(self, count: int) -> int:
        return 4 * count


class HalfCodec:
    """float16 rather than bfloat16: eight times as exact in the range where gradients lie.

    What is larger than it can hold goes in several steps, and what is smaller waits until it has added up. bfloat16
    would need neither, but what waits here, below 6e-8, is what AdamW's epsilon of 1e-8 holds back in any case.
    """

    name = "fp16"

    def encode(self, values: Tensor) -> Tensor:
        halves = torch.empty(values.numel(), dtype=torch.float16, device=values.device)
        for here in _chunks(values):
            part = values[here]
            within = part.clamp(-LARGEST_HALF, LARGEST_HALF)
            # x - x is 0, but for what is no finite number: it must not become the largest one.
            halves[here] = within.add_(part - part)
        return halves.view(torch.uint8)

    def decode(self, payload: Tensor, count: int) -> Tensor:
        return _aligned(payload[: 2 * count], torch.float16).float()

    def payload_bytes(self, count: int) -> int:
        return 2 * count


class BlockCodec:
    """Whole numbers of 8, 4 or 2 bits, and for each block of values a bfloat16 that one unit of them stands for.

    8 and 4 bits: -127 to 127 and -7 to 7, and the unit is such that the block's largest value is the last of them.
    2 bits: -3, -1, 1, 3, and the unit is 0.62 of the block's mean magnitude, with which values that are normally
    distributed lose least (Max 1960, "Quantizing for minimum distortion": levels 0.996 standard deviations apart). As
    long as it is less than 2 of the mean magnitude, no block grows by what is lost, however few of its values are not
    0; with the largest value for a measure it would.
    """

    def __init__(self, bits: int, block: int | None = None) -> None:
        if bits not in BLOCKS:
            raise ValueError(f"{bits} bits: expected one of {sorted(BLOCKS)}")
        self.name = f"int{bits}"
        self._bits = bits
        self._block = block or BLOCKS[bits]

    def payload_bytes(self, count: int) -> int:
        return 2 * -(-count // self._block) + -(-count * self._bits // 8)

    def encode(self, values: Tensor) -> Tensor:
        units = torch.empty(-(-values.numel() // self._block), dtype=torch.bfloat16, device=values.device)
        levels = torch.empty(values.numel(), dtype=torch.int8, device=values.device)
        for blocks, here, width in self._rows(values):
            rows = values[here].view(-1, width)
            units[blocks] = unit = self._unit(rows)
            levels[here].view(-1, width).copy_(self._levels(rows, unit.float().unsqueeze(1)))
        return torch.cat((units.view(torch.uint8), _pack(levels, self._bits)))

    def decode(self, payload: Tensor, count: int) -> Tensor:
        end = 2 * -(-count // self._block)
        units = _aligned(payload[:end], torch.bfloat16).float()
        levels = _unpack(payload[end:], self._bits)
        values = torch.empty(count, device=payload.device)
        for blocks, here, width in self._rows(values):
            torch.mul(levels[here].view(-1, width), units[blocks].unsqueeze(1), out=values[here].view(-1, width))
        return values

    def _unit(self, rows: Tensor) -> Tensor:
        magnitude = rows.abs()
        last = 2 ** (self._bits - 1) - 1
        unit = magnitude.mean(1).mul_(0.625) if self._bits == 2 else magnitude.amax(1).div_(last)
        # One so small that a value divided by it would overflow: the block comes out as 0, and waits.
        return unit.masked_fill_(unit < SMALLEST, 0).bfloat16()

    def _levels(self, rows: Tensor, unit: Tensor) -> Tensor:
        per_unit = unit.reciprocal().masked_fill_(unit == 0, 0)
        if self._bits == 2:
            return rows.mul(per_unit / 2).floor_().clamp_(-2, 1)
        # The bfloat16 is at most 1/256 smaller than what was asked for: no value is rounded beyond the last level.
        return rows.mul(per_unit).round_()

    def _rows(self, values: Tensor) -> Iterator[tuple[slice, slice, int]]:
        """Slices of blocks and of their values, and how many values a block has: the last may have fewer."""
        count = values.numel()
        whole = count // self._block * self._block
        for here in _chunks(values[:whole]):
            yield slice(here.start // self._block, here.stop // self._block), here, self._block
        if whole < count:
            yield slice(whole // self._block, None), slice(whole, count), count - whole


BLOCKS = {8: 128, 4: 64, 2: 128}
"""Values that share a unit, by bits. Rows of a matrix differ much in size, those of an embedding by how often its words
occur: a block is to lie within one row, else the small one is lost beside the large one."""


class SparseCodec:
    """The largest values of each block of 256, and where in it they stand; all others are 0, and wait.

    The largest of a small block rather than of all: it is found faster, and its place is one byte.
    """

    name = "topk"
    _block = 256

    def __init__(self, density: float, chosen: Codec | None = None) -> None:
        """`density`: the share of values that is sent, 1/256 at least; `chosen`: how these are encoded."""
        if not 0 < density <= 1:
            raise ValueError(f"density {density:g}: expected more than 0 and at most 1")
        self._each = max(1, round(density * self._block))
        self._values = chosen or BlockCodec(4)

    def payload_bytes(self, count: int) -> int:
        sent = -(-count // self._block) * self._each
        return sent + self._values.payload_bytes(sent)

    def encode(self, values: Tensor) -> Tensor:
        blocks = -(-values.numel() // self._block)
        places = torch.empty(blocks, self._each, dtype=torch.uint8, device=values.device)
        chosen = torch.empty(blocks, self._each, device=values.device)
        for here in _chunks(values):
            part = values[here]
            rows = F.pad(part, (0, -part.numel() % self._block)).view(-1, self._block)
            where = rows.abs().topk(self._each, dim=1, sorted=False).indices
            first = here.start // self._block
            places[first : first + len(rows)] = where
            chosen[first : first + len(rows)] = rows.gather(1, where)
        return torch.cat((places.flatten(), self._values.encode(chosen.flatten())))

    def decode(self, payload: Tensor, count: int) -> Tensor:
        blocks = -(-count // self._block)
        sent = blocks * self._each
        places = payload[:sent].view(blocks, self._each).long()
        chosen = self._values.decode(payload[sent:], sent).view(blocks, self._each)
        values = torch.zeros(blocks, self._block, device=payload.device)
        return values.scatter_(1, places, chosen).flatten()[:count]


def _chunks(values: Tensor) -> Iterator[slice]:
    """All of them at once on an accelerator, whose time goes by the number of operations."""
    count = values.numel()
    step = CHUNK if values.device.type == "cpu" else max(1, count)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _pack(levels: Tensor, bits: int) -> Tensor:
    """(count,) int8 to (count * bits / 8,) uint8. The first byte holds the first value of each quarter (or half) of
    them: whole runs of bytes are shifted at once, and no value is moved."""
    if bits == 8:
        return levels.view(torch.uint8)
    per_byte = 8 // bits
    planes = F.pad(levels, (0, -levels.numel() % per_byte)).view(torch.uint8).view(per_byte, -1)
    packed = planes[0] & (1 << bits) - 1
    for number in range(1, per_byte):
        packed |= (planes[number] & (1 << bits) - 1) << number * bits
    return packed


def _unpack(packed: Tensor, bits: int) -> Tensor:
    """Levels that `_pack` was given, and perhaps a few more; of 2 bits the odd number that each stands for."""
    signed = packed.view(torch.int8)
    if bits == 8:
        return signed
    per_byte = 8 // bits
    levels = torch.empty(per_byte, packed.numel(), dtype=torch.int8, device=packed.device)
    for number, plane in enumerate(levels):
        # Up to the sign, and down again with it.
        torch.bitwise_left_shift(signed, 8 - (number + 1) * bits, out=plane)
        plane >>= 8 - bits
    return levels.mul_(2).add_(1).view(-1) if bits == 2 else levels.view(-1)


def _aligned(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """View bytes as numbers; a copy where they begin at an odd address."""
    if payload.storage_offset() % dtype.itemsize:
        payload = payload.clone()
    return payload.view(dtype)
