"""Deviation of tensors from those of a reference, in proportion to their size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference as a share of the norm of `expected`."""
    difference = found.detach().double() - expected.detach().double()
    return float(difference.norm() / expected.detach().double().norm().clamp_min(1e-30))


def largest(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest `relative` deviation of tensors of the same names; NaN if one is NaN."""
    assert found.keys() == expected.keys()
    return float(np.max([relative(found[name], tensor) for name, tensor in expected.items()]))
