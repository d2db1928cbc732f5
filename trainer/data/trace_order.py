"""Order of traces for models that pad: batches of similar length from a shuffled window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.data.order import BlockShuffled, Indices, permutation


class ByLength(BlockShuffled):
    """Block-shuffled, but in each window traces of similar length are adjacent: a batch needs hardly any padding.

    Groups of `group` traces, which should be those of one step, start at multiples of `group` of the whole stream, so
    that few steps straddle two of them. Random are the members of a window, and the order of the groups.
    """

    def __init__(self, samples: int, seed: int, lengths: Callable[[Indices], Indices], group: int) -> None:
        super().__init__(samples, seed)
        self._lengths = lengths
        self._group = group

    def window(self, epoch: int, number: int) -> Indices:
        order = super().window(epoch, number)
        begin = epoch * self.samples + number * self.BLOCK * self.WINDOW
        head = min(-begin % self._group, len(order))
        rest = order[head:]
        rest = rest[np.argsort(self._lengths(rest), kind="stable")]
        whole = len(rest) // self._group
        groups = rest[: whole * self._group].reshape(whole, self._group)
        groups = groups[permutation(self.seed, begin + (1 << 63), whole)]
        return np.concatenate([order[:head], groups.reshape(-1), rest[whole * self._group :]])
