"""In which order samples come: a stream without end, one permutation after another.

Position p of the stream is sample permutation(seed, p // n)[p % n]. Nothing else decides, so that one number
(the position) is all a checkpoint has to keep, and a step sees the same samples for any number of ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class SampleStream:
    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self._epoch = -1
        self._order: Indices = np.empty(0, np.int64)

    def take(self, position: int, count: int) -> Indices:
        """The `count` samples from `position` on; they may reach over the end of an epoch."""
        taken = []
        while count > 0:
            epoch, offset = divmod(position, self.samples)
            part = self._permutation(epoch)[offset : offset + count]
            taken.append(part)
            position += len(part)
            count -= len(part)
        return np.concatenate(taken)

    def _permutation(self, epoch: int) -> Indices:
        if epoch != self._epoch:
            # NumPy promises the raw output of a bit generator for ever, that of Generator.permutation not.
            keys = np.random.Philox(key=np.array([self.seed, epoch], np.uint64)).random_raw(self.samples)
            self._order = np.argsort(keys, kind="stable").astype(np.int64)
            self._epoch = epoch
        return self._order


def share(indices: Indices, rank: int, world_size: int) -> Indices:
    """The contiguous part of one rank; parts differ by at most one sample."""
    total = len(indices)
    return indices[total * rank // world_size : total * (rank + 1) // world_size]
