"""In which order samples come: a stream without end, one epoch after another.

Position p of the stream belongs to epoch p // n, and which sample stands there follows from (seed, p) alone. So one
number (the position) is all that a checkpoint has to keep, resuming anywhere takes no time, and a step sees the same
samples for any number of ranks and workers.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Shuffled, but samples of similar length are grouped: a batch needs hardly any padding.

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


class BlockShuffled:
    """For more samples than memory has room for numbers, on a disk that likes to be read in long pieces.

    Blocks of neighbouring samples come in an order of chance, and samples are shuffled within a window of many blocks.
    Where the blocks begin moves with each epoch, so that other samples become neighbours. Only one window is kept, and
    any window is computed alone: neither memory nor the time to resume grow with the number of samples.
    """

    BLOCK = 512
    WINDOW = 16
    """Blocks. With 8192 samples to choose from, a batch is as mixed as one from a shuffle buffer of that size."""

    def __init__(self, samples: int, seed: int, *, block: int = BLOCK, window: int = WINDOW) -> None:
        self.samples = samples
        self.seed = seed
        self._block = block
        self._window = window * block
        self._kept = (-1, -1)
        self._order: Indices = np.empty(0, np.int64)

    def take(self, position: int, count: int) -> Indices:
        taken = []
        while count > 0:
            epoch, place = divmod(position, self.samples)
            number, offset = divmod(place, self._window)
            if (epoch, number) != self._kept:
                self._order, self._kept = self.window(epoch, number), (epoch, number)
            part = self._order[offset : offset + count]
            taken.append(part)
            position += len(part)
            count -= len(part)
        return np.concatenate(taken)

    def window(self, epoch: int, number: int) -> Indices:
        """The samples of one window. Orders that arrange them further override this."""
        blocks, begin = self.samples // self._block, number * self._window
        end = min(begin + self._window, self.samples)
        *keys, turn = _raw(self.seed, _LAST_STREAM - epoch, ROUNDS + 1)
        places = np.arange(begin // self._block, min(end // self._block, blocks), dtype=np.int64)
        first = scattered(places, blocks, keys) * self._block
        members = (first[:, None] + np.arange(self._block)).ravel()
        # What is left beyond the last whole block keeps its place; the turn makes it other samples in each epoch.
        members = np.append(members, np.arange(begin + len(members), end))
        windows = -(-self.samples // self._window)
        mixed = members[permutation(self.seed, epoch * windows + number, len(members))]
        return (mixed + int(turn) % self.samples) % self.samples


ROUNDS = 8


def scattered(places: Indices, count: int, keys: Sequence[np.uint64]) -> Indices:
    """Where each of `places` goes in a permutation of 0 … count-1 that is never written down.

    A Feistel network permutes the numbers of so many bits; what lands at `count` or above is sent through again until
    it does not (Black, Rogaway: Ciphers with arbitrary finite domains, 2002).
    """
    bits = max(2, (count - 1).bit_length())
    low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    low_mask, high_mask = (np.uint64((1 << int(width)) - 1) for width in (low, high))
    result = places.astype(np.uint64)
    astray = np.arange(len(places))
    while len(astray):
        left, right = result[astray] >> low, result[astray] & low_mask
        for one, other in zip(keys[0::2], keys[1::2], strict=True):
            left ^= _mixed(right ^ one) & high_mask
            right ^= _mixed(left ^ other) & low_mask
        result[astray] = (left << low) | right
        astray = astray[result[astray] >= np.uint64(count)]
    return result.astype(np.int64)


def permutation(seed: int, stream: int, count: int) -> Indices:
    """0 … count-1 in an order of chance: the same for ever for one (seed, stream)."""
    return np.argsort(_raw(seed, stream, count), kind="stable").astype(np.int64)


_LAST_STREAM = (1 << 64) - 1
"""Counted down for what must not coincide with a permutation's chance."""


def _raw(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    # NumPy promises the raw output of a bit generator for ever, that of Generator.permutation not.
    return np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)


def uniform(seed: int, positions: Indices, columns: int) -> NDArray[np.float64]:
    """(positions, columns) random numbers from [0, 1) for each sample, by its position in the stream.

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
    return indices[span(len(indices), rank, world_size)]


def span(total: int, rank: int, world_size: int) -> slice:
    """Which of `total` samples in a row are one rank's."""
    return slice(total * rank // world_size, total * (rank + 1) // world_size)
