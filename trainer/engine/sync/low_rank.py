"""PowerSGD (Vogels et al. 2019, arXiv 1905.13727): ranks send thin factors of each gradient instead of the gradient.

A gradient M of m rows and n columns is taken for P Q', where P has `rank` orthonormal columns that span nearly what the
mean of all ranks' M spans: P = M Q, with the last step's Q to start from, averaged, made orthonormal; then Q = M' P,
averaged. What P cannot express of a rank's own M it keeps and adds to its next gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], None]
"""Puts in place of a tensor the mean of what all ranks gave, the same bits on each of them."""

SHRINK = 1e-12
"""Share of the sum of P's squared singular values: less than it is rounding error, not to be scaled up to length 1."""


class LowRank:
    """The gradients of one bucket, always the same ones in the same order.

    A reduction makes two collectives, whatever the gradients are: one with all P's and with what is sent as it is, one
    with all Q's.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], *, rank: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        """`shapes`: of the gradients. A row of a matrix is what stands under one first index. Those with one dimension,
        and matrices that factors would not make smaller, are sent as they are. `seed`: the same on all ranks."""
        sides = {
            at: (shape[0], shape.numel() // shape[0])
            for at, shape in enumerate(shapes)
            if len(shape) > 1 and shape.numel()
        }
        self._sides = {at: (m, n) for at, (m, n) in sides.items() if thin(shapes[at], rank) < m * n}
        self._whole = [at for at in range(len(shapes)) if at not in self._sides]
        self._rank = rank
        chance = torch.Generator().manual_seed(seed)
        self._q = [torch.randn(n, rank, generator=chance).to(device) for _, n in self._sides.values()]
        self._residuals = [torch.zeros(side, device=device) for side in self._sides.values()]
        # torch loads its linear algebra for GPUs at the first call, and fails if that comes from two threads at once.
        orthonormal([torch.ones(1, 1, device=device)])

    @property
    def averages(self) -> int:
        """Number of averages in a reduction, one after another: of P's and what is sent as it is, then of Q's."""
        return bool(self._sides or self._whole) + bool(self._sides)

    @property
    def matrices(self) -> list[int]:
        """Numbers of the gradients that are sent as factors."""
        return list(self._sides)

    def reduce(self, gradients: Sequence[Tensor], all_reduce: AllReduce) -> None:
        """Puts nearly the mean of all ranks' gradients (float32, contiguous) in place of this rank's.

        Where any rank's are not finite all of them become NaN, and what is kept for the next step stays as it was.
        """
        with torch.no_grad():
            matrices = [gradients[at].view(side) for at, side in self._sides.items()]
            for matrix, residual in zip(matrices, self._residuals, strict=True):
                matrix += residual
            p = self._average_p(matrices, [gradients[at] for at in self._whole], all_reduce)
            own = [matrix.mT @ basis for matrix, basis in zip(matrices, p, strict=True)]
            mean = _averaged(own, all_reduce)
            if not all(each.isfinite().all() for each in [*mean, *(gradients[at] for at in self._whole)]):
                for gradient in gradients:
                    gradient.fill_(math.nan)
                return
            for matrix, basis, mine, residual in zip(matrices, p, own, self._residuals, strict=True):
                # By this rank's own Q, not by the mean: how it differs from the others along P is no debt to keep.
                torch.addmm(matrix, basis, mine.mT, alpha=-1, out=residual)
            for matrix, basis, agreed in zip(matrices, p, mean, strict=True):
                torch.mm(basis, agreed.mT, out=matrix)
            self._q = mean

    def state_dict(self) -> dict[str, Any]:
        """`residuals` are this rank's own, `q` is the same on all."""
        return {"residuals": list(self._residuals), "q": list(self._q)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a bucket of the same gradients and the same rank. ValueError: it is of others."""
        for name, tensors in (("residuals", self._residuals), ("q", self._q)):
            if [each.shape for each in state[name]] != [each.shape for each in tensors]:
                raise ValueError(f"PowerSGD's {name} are of other shapes than this bucket's gradients at this rank")
            for old, new in zip(tensors, state[name], strict=True):
                old.copy_(new)

    def _average_p(self, matrices: list[Tensor], whole: list[Tensor], all_reduce: AllReduce) -> list[Tensor]:
        """P of each matrix; `whole` becomes its mean."""
        given = [matrix @ q for matrix, q in zip(matrices, self._q, strict=True)]
        mean = _averaged([*given, *whole], all_reduce)
        for tensor, averaged in zip(whole, mean[len(given) :], strict=True):
            tensor.copy_(averaged)
        return orthonormal(mean[: len(given)])


def thin(shape: torch.Size, rank: int) -> int:
    """Values that are sent of a gradient of this shape: its factors', or its own where these are no fewer."""
    whole = shape.numel()
    return min(whole, rank * (shape[0] + whole // shape[0])) if len(shape) > 1 and whole else whole


def orthonormal(matrices: list[Tensor]) -> list[Tensor]:
    """Each of (m, rank) with its columns orthonormal, and the first of them in its old direction.

    By Cholesky's factor of P' P: unlike Householder's QR it leaves no choice of signs, so that a GPU and a CPU that
    average their Q's mean the same columns. In float64, which makes up for squaring the condition number; P' P is only
    rank × rank. A column that depends on those before it comes out short, and never longer than 1.
    """
    if not matrices:
        return []
    gram = torch.stack([matrix.double().mT @ matrix.double() for matrix in matrices])
    size = gram.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    # Of length 1 in all before it is factored: neither large nor small gradients leave the range of numbers.
    scale = size.masked_fill(size == 0, 1)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    lower = torch.linalg.cholesky_ex(gram / scale + SHRINK * eye).L
    upper = torch.linalg.solve_triangular(lower, eye.expand_as(gram), upper=False).mT / scale.sqrt()
    return [(matrix.double() @ u).float() for matrix, u in zip(matrices, upper, strict=True)]


def _averaged(tensors: list[Tensor], all_reduce: AllReduce) -> list[Tensor]:
    """Average in one collective."""
    if not tensors:
        return []
    together = torch.cat([tensor.flatten() for tensor in tensors])
    all_reduce(together)
    parts = torch.split(together, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
