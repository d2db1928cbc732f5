"""Parameters in groups of some megabytes, whose values travel together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

LARGEST = 1 << 22
"""Values in a bucket: 16 MiB of gradients."""
SMALLEST = 1 << 16
"""Size below which what surrounds a message is more than the message."""
ENOUGH = 8
"""Buckets that a small model is cut into: those of the last layers travel while the first ones are computed."""


class Bucket:
    """Some parameters, and what belongs to them as one flat float32 vector."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.count = sum(parameter.numel() for parameter in parameters)
        self.device = parameters[0].device

    def gradients(self, *, exact: bool = False) -> Tensor:
        """(count,): a copy; zero where a parameter took no part. `exact`: in the parameters' own type."""
        flat = torch.cat([p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in self.parameters])
        return flat if exact else flat.float()

    def set_gradients(self, flat: Tensor) -> None:
        for parameter, values in zip(self.parameters, self._parts(flat), strict=True):
            if parameter.grad is None:
                parameter.grad = values.to(parameter.dtype, copy=True)
            else:
                parameter.grad.copy_(values)

    def weights(self) -> Tensor:
        """(count,): a copy."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters]).float()

    @torch.no_grad()
    def set_weights(self, flat: Tensor) -> None:
        for parameter, values in zip(self.parameters, self._parts(flat), strict=True):
            parameter.copy_(values)

    def part(self, count: int, device: torch.device) -> Bucket:
        """A vector of `count` of these values, on `device`."""
        made = Bucket(self.parameters)
        made.count, made.device = count, device
        return made

    def _parts(self, flat: Tensor) -> list[Tensor]:
        pieces = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [piece.view_as(parameter) for piece, parameter in zip(pieces, self.parameters, strict=True)]


def cut(parameters: Iterable[nn.Parameter], largest: int) -> list[Bucket]:
    """Buckets of at most `largest` values, or of one parameter that has more.

    The last parameters come first: a backward pass reaches them first, so theirs can be sent while it continues.
    """
    groups: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        if groups[-1] and size + parameter.numel() > largest:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.numel()
    return [Bucket(group) for group in groups if group]


def by_backward(parameters: Iterable[nn.Parameter]) -> list[Bucket]:
    """Make as many buckets as let the exchange begin while the backward pass continues."""
    chosen = list(parameters)
    count = sum(parameter.numel() for parameter in chosen if parameter.requires_grad)
    return cut(chosen, min(LARGEST, max(SMALLEST, -(-count // ENOUGH))))


def before_the_last(
    buckets: Sequence[Sequence[nn.Parameter]], sizes: Sequence[int], together: Iterable[nn.Parameter] = ()
) -> float:
    """Share of what travels that can do so before the backward pass ends: the last bucket is full when it does.

    `sizes`: what each bucket sends. `together`: weights whose gradients come all at once, last of all. Buckets travel
    in their order, and so none from the first of these on is early.
    """
    last = {id(parameter) for parameter in together}
    late = next((n for n, bucket in enumerate(buckets) if any(id(one) in last for one in bucket)), len(buckets))
    early = sizes[: min(late, len(buckets) - 1)]
    return sum(early) / sum(sizes) if any(sizes) else 0.0


def fragments(parameters: Iterable[nn.Parameter], number: int) -> list[Bucket]:
    """Make about `number` buckets of about the same size."""
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    return cut(chosen, -(-sum(parameter.numel() for parameter in chosen) // number))
