"""A batch, and the request for one. Imports neither torch nor numpy: see trainer/check.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.order import Indices

Batch = tuple["Tensor", ...]


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """Samples of a split, chosen by the engine."""

    split: str
    indices: Indices
    positions: Indices
    """Position of each sample in the endless stream of training. Random augmentation (crops, mixup) depends on the seed
    and this position alone: the same for any number of ranks and workers."""

    def __len__(self) -> int:
        return len(self.indices)
