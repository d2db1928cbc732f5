"""Samples of prepared tokens, from memory-mapped shards."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from contract.data_parts import here
from trainer.data.manifests import PreparedTokens
from trainer.data.order import Indices


class Windows:
    """Sample i: `length` tokens of a memory-mapped shard, and the token after them."""

    def __init__(self, prepared: PreparedTokens, split: str, length: int) -> None:
        dtype = np.dtype(prepared.manifest["dtype"])
        entries = prepared.manifest["splits"][split]["shards"]
        self.length = length
        held = [entries[number] for number in here(entries)]
        self._shards = [np.memmap(prepared.folder / str(entry["file"]), dtype, "r") for entry in held]
        self._ends = list(accumulate((len(shard) - 1) // length for shard in self._shards))
        self.everywhere = sum((int(entry["tokens"]) - 1) // length for entry in entries)
        """Samples of all nodes together."""
        prepared.must_hold_a_window(split, length)

    def __len__(self) -> int:
        """Count the samples that are here."""
        return self._ends[-1]

    def take(self, indices: Indices) -> NDArray[np.int64]:
        windows = []
        for index in map(int, indices):
            shard = bisect_right(self._ends, index)
            start = (index - (self._ends[shard - 1] if shard else 0)) * self.length
            windows.append(self._shards[shard][start : start + self.length + 1])
        return np.stack(windows).astype(np.int64)
