"""In which order samples come: a stream without end, one epoch after another.

Position p of the stream belongs to epoch p // n, and which sample stands there follows from (seed, p) alone. So one
number (the position) is all that a checkpoint has to keep, resuming anywhere takes no time, and a step sees the same
samples for any number of ranks and workers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Order(Protocol):
    samples: int
    """In one epoch."""

    def take(self, position: int, count: int) -> Indices:
        """The `count` samples from `position` on; they may reach over the end of an epoch."""
        ...


class Shuffled:
    """One permutation after another: every sample once in each epoch. Takes 16 bytes of memory a sample."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self._epoch = -1
        self._order: Indices = np.empty(0, np.int64)

    def take(self, position: int, count: int) -> Indices:
        taken = []
        while count > 0:
            epoch, offset = divmod(position, self.samples)
            if epoch != self._epoch:
                self._order, self._epoch = self.epoch(epoch), epoch
            part = self._order[offset : offset + count]
            taken.append(part)
            position += len(part)
            count -= len(part)
        return np.concatenate(taken)

    def epoch(self, number: int) -> Indices:
        """All samples of one epoch. Orders of another kind override this."""
        return permutation(self.seed, number, self.samples)


class Bucketed(Shuffled):
    """Shuffled, but samples of like length stand together: a batch needs hardly any padding.

    Groups of `group` samples, which should be those of one step, start at multiples of `group` of the whole stream, so
    that no step straddles two of them, in whichever epoch. What is of chance: who meets whom, and the order of groups.
    """

    GROUPS_SORTED_TOGETHER = 50
    """More: less padding. Fewer: more chance in who meets whom."""

    def __init__(self, lengths: NDArray[np.integer], seed: int, group: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths = lengths
        self.group = group

    def epoch(self, number: int) -> Indices:
        order = permutation(self.seed, number, self.samples)
        # The last step of the epoch before takes the first few of this one.
        head = min(-number * self.samples % self.group, self.samples)
        rest = order[head:]
        together = np.arange(len(rest)) // (self.group * self.GROUPS_SORTED_TOGETHER)
        rest = rest[np.lexsort((self.lengths[rest], together))]  # stable: those of one length stay shuffled
        whole = len(rest) // self.group
        groups = rest[: whole * self.group].reshape(whole, self.group)
        groups = groups[permutation(self.seed, number + (1 << 63), whole)]
        return np.concatenate([order[:head], groups.reshape(-1), rest[whole * self.group :]])


def permutation(seed: int, stream: int, count: int) -> Indices:
    """0 … count-1 in an order of chance: the same for ever for one (seed, stream)."""
    # NumPy promises the raw output of a bit generator for ever, that of Generator.permutation not.
    keys = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
    return np.argsort(keys, kind="stable").astype(np.int64)


def uniform(seed: int, positions: Indices, columns: int) -> NDArray[np.float64]:
    """(positions, columns) numbers from [0, 1): the chance of each sample, by where it stands in the stream.

    SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) over a counter:
    all of it is one expression over arrays, where a generator for each sample would cost more than its crop.
    """
    with np.errstate(over="ignore"):
        counter = positions.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(columns, dtype=np.uint64)
        x = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + _mixed(np.array([seed], np.uint64))
    bits: NDArray[np.uint64] = _mixed(x) >> np.uint64(11)
    return bits.astype(np.float64) / float(1 << 53)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def share(indices: Indices, rank: int, world_size: int) -> Indices:
    """The contiguous part of one rank; parts differ by at most one sample."""
    total = len(indices)
    return indices[total * rank // world_size : total * (rank + 1) // world_size]
