"""Prepared texts in memory: token ids mapped from their file, and labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifests import PreparedText
from trainer.data.order import Indices

SPLITS = ("train", "validation")


class Rows:
    """The texts of one split, cut to `max_length` tokens."""

    def __init__(self, prepared: PreparedText, split: str, max_length: int) -> None:
        self._made_of = (prepared, split, max_length)
        self._padding = int(prepared.manifest["shape"]["padding_id"])
        self._tokens: NDArray[np.int32] = np.load(prepared.file(f"{split}-tokens"), mmap_mode="r")
        self._offsets: NDArray[np.int64] = np.load(prepared.file(f"{split}-offsets"))
        self.labels: NDArray[np.int64] = np.load(prepared.file(f"{split}-labels"))
        self.full_lengths: NDArray[np.int64] = np.diff(self._offsets)
        self.max_length = max_length
        self.lengths = np.minimum(self.full_lengths, max_length)

    def __reduce__(self) -> tuple[type[Rows], tuple[PreparedText, str, int]]:
        """Worker processes map the file again instead of receiving its content."""
        return Rows, self._made_of

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices, width: int) -> NDArray[np.int64]:
        """(rows, width) token ids, padded at the end."""
        tokens = np.full((len(indices), width), self._padding, np.int64)
        for at, index in enumerate(indices):
            start, end, length = self._offsets[index], self._offsets[index + 1], self.lengths[index]
            tokens[at, :length] = self._tokens[start : start + length]
            tokens[at, length - 1] = self._tokens[end - 1]  # the mark of the end stays when a text is cut
        return tokens
