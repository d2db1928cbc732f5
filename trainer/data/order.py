"""Order of samples: an endless stream, one epoch after another.

Position p of the stream belongs to epoch p // n, and its sample follows from (seed, p) alone: a step has the same
samples for any number of ranks and workers. An order that groups the samples of a step needs the sizes of steps
too (`StepSizes`): a checkpoint holds the position and these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
StepSizes: TypeAlias = Sequence[tuple[int, int]]
"""Samples of a step, with the position of the stream from which on steps have so many, in order: the first is 0."""


class Order(Protocol):
    samples: int
    """Samples in one epoch."""

    def take(self, position: int, count: int) -> Indices:
        """The `count` samples from `position` on; they may reach over the end of an epoch."""
        ...


class Shuffled:
    """One permutation after another: every sample once in each epoch. Takes 16 bytes of memory per sample."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self._window = samples
        self._cached = (-1, -1)
        self._order: Indices = np.empty(0, np.int64)

    def take(self, position: int, count: int) -> Indices:
        taken = []
        while count > 0:
            epoch, place = divmod(position, self.samples)
            number, offset = divmod(place, self._window)
            if (epoch, number) != self._cached:
                self._order, self._cached = self.window(epoch, number), (epoch, number)
            part = self._order[offset : offset + count]
            taken.append(part)
            position += len(part)
            count -= len(part)
        return np.concatenate(taken)

    def window(self, epoch: int, number: int) -> Indices:  # noqa: ARG002  # here an epoch is one window
        """The samples of one window of an epoch."""
        return permutation(self.seed, epoch, self.samples)

    def _grouped(
        self, order: Indices, lengths: Callable[[Indices], NDArray[np.integer]], group: int, begin: int, stream: int,
        together: int,
    ) -> Indices:  # fmt: skip
        """Sort `order` by length among `together` neighbours, and shuffle groups of `group` samples, those of one step.
        `begin`: position of its first sample; groups start at multiples of `group`."""
        head = min(-begin % group, len(order))  # the last step of the window before takes these
        rest = order[head:]
        # Stable: those of one length stay shuffled.
        rest = rest[np.lexsort((lengths(rest), np.arange(len(rest)) // together))]
        whole = len(rest) // group
        groups = rest[: whole * group].reshape(whole, group)
        groups = groups[permutation(self.seed, stream + (1 << 63), whole)]
        return np.concatenate([order[:head], groups.reshape(-1), rest[whole * group :]])


class Bucketed(Shuffled):
    """Shuffled, but a step's samples are of similar length: a batch needs hardly any padding."""

    GROUPS_SORTED_TOGETHER = 50
    """More: less padding. Fewer: more randomness in a group."""

    def __init__(self, lengths: NDArray[np.integer], seed: int, step_sizes: StepSizes) -> None:
        super().__init__(len(lengths), seed)
        self.lengths = lengths
        self.step_sizes = step_sizes

    def window(self, epoch: int, number: int) -> Indices:
        """The samples of an epoch, grouped for steps of the size with which it begins. If the size changes later in the
        epoch, its groups stay: other ones would repeat some of its samples and leave others out."""
        begin = epoch * self.samples
        since, group = next(change for change in reversed(self.step_sizes) if change[0] <= begin)
        order, together = super().window(epoch, number), group * self.GROUPS_SORTED_TOGETHER
        return self._grouped(order, self.lengths.__getitem__, group, begin - since, epoch, together)


class BlockShuffled(Shuffled):
    """Random blocks of neighbouring samples, shuffled within a window of many blocks, for a disk faster in long reads.

    The blocks begin elsewhere in each epoch: other samples become neighbours. Only one window is kept, and any window
    is computed alone: neither memory nor the time to resume grow with the number of samples.
    """

    BLOCK = 512
    WINDOW = 16
    """Blocks. With 8192 samples to choose from, a batch is as mixed as one from a shuffle buffer of that size."""

    def __init__(self, samples: int, seed: int, *, block: int = BLOCK, window: int = WINDOW) -> None:
        super().__init__(samples, seed)
        self._block = block
        self._window = window * block

    def window(self, epoch: int, number: int) -> Indices:
        blocks, begin = self.samples // self._block, number * self._window
        end = min(begin + self._window, self.samples)
        *keys, turn = _raw(self.seed, _LAST_STREAM - epoch, ROUNDS + 1)
        places = np.arange(begin // self._block, min(end // self._block, blocks), dtype=np.int64)
        first = scattered(places, blocks, keys) * self._block
        members = (first[:, None] + np.arange(self._block)).ravel()
        # Samples beyond the last whole block keep their place; the turn makes them other samples in each epoch.
        members = np.append(members, np.arange(begin + len(members), end))
        windows = -(-self.samples // self._window)
        mixed = members[permutation(self.seed, epoch * windows + number, len(members))]
        return (mixed + int(turn) % self.samples) % self.samples


class ByLength(BlockShuffled):
    """Block-shuffled, but a step's samples are of similar length. Few steps straddle two windows."""

    def __init__(self, samples: int, seed: int, lengths: Callable[[Indices], Indices], group: int) -> None:
        super().__init__(samples, seed)
        self._lengths = lengths
        self._group = group

    def window(self, epoch: int, number: int) -> Indices:
        begin = epoch * self.samples + number * self._window
        return self._grouped(super().window(epoch, number), self._lengths, self._group, begin, begin, self._window)


def changed_steps(step_sizes: StepSizes, position: int, samples: int) -> list[tuple[int, int]]:
    """The sizes of steps if they have `samples` from `position` on."""
    before = [change for change in step_sizes if change[0] < position]
    return before if before and before[-1][1] == samples else [*before, (position, samples)]


ROUNDS = 8


def scattered(places: Indices, count: int, keys: Sequence[np.uint64]) -> Indices:
    """The images of `places` under a permutation of 0 … count-1 that is not stored: a Feistel network; its results of
    `count` or above are permuted again (Black, Rogaway: Ciphers with arbitrary finite domains, 2002)."""
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
    """A random permutation of 0 … count-1: the same for ever for one (seed, stream)."""
    return np.argsort(_raw(seed, stream, count), kind="stable").astype(np.int64)


_LAST_STREAM = (1 << 64) - 1
"""Counted down for random numbers that must not coincide with a permutation's."""


def _raw(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    # NumPy promises the raw output of a bit generator for ever, that of Generator.permutation not.
    return np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)


def uniform(seed: int, positions: Indices, columns: int) -> NDArray[np.float64]:
    """(positions, columns) random numbers from [0, 1) for each sample, by its position in the stream.

    SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) over a counter: a
    generator for each sample would cost more than its crop.
    """
    with np.errstate(over="ignore"):
        columns_of_each = np.arange(columns, dtype=np.uint64)
        counter: NDArray[np.uint64] = np.add(positions.astype(np.uint64)[:, None] * np.uint64(columns), columns_of_each)
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
    """One rank's part of `total` samples in a row."""
    return slice(total * rank // world_size, total * (rank + 1) // world_size)
