"""Cache of image files for all worker processes: each is decoded once and kept as uint8, before augmentation."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from trainer.data.images import Frame, Pixels, Split, pixels
from trainer.errors import ConfigurationError
from trainer.limits import memory_limit, memory_used

MIB = 1 << 20
SHARE = 0.25
"""Share of the memory that is free at the start, over the node's ranks: the model and the system need the rest."""


class CachedImages:
    """The images of a split, decoded at first touch; the first `in_memory` of them stay in shared memory."""

    def __init__(self, split: Split, frame: Frame, budget: int) -> None:
        self.labels = split.labels
        self._split, self._frame, self._shape = split, frame, frame.shape
        each = math.prod(self._shape) + 1
        self.in_memory = min(len(split), budget // each)
        self.bytes = self.in_memory * each
        # memfd rather than /dev/shm: a container's /dev/shm is small, and too much in it kills with SIGBUS.
        self._descriptor = os.memfd_create("images") if self.in_memory else -1
        if self.in_memory:
            os.ftruncate(self._descriptor, self.bytes)
        self._path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._map()

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, index: int) -> Pixels:
        if index >= self.in_memory:
            return self._decode(index)
        if not self._there[index]:
            # Two workers may both decode it: they write the same bytes. The mark follows the pixels.
            self._pixels[index] = self._decode(index)
            self._there[index] = 1
        image: Pixels = self._pixels[index]
        return image

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def __getstate__(self) -> dict[str, Any]:
        """Let a worker process that is not forked open the same memory by its owner's descriptor."""
        maps = ("_pixels", "_there")
        return {**{name: value for name, value in vars(self).items() if name not in maps}, "_descriptor": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map()

    def _map(self) -> None:
        if not self.in_memory:
            return
        self._pixels = np.memmap(self._path, np.uint8, "r+", shape=(self.in_memory, *self._shape))
        self._there = np.memmap(self._path, np.uint8, "r+", offset=self.bytes - self.in_memory, shape=(self.in_memory,))

    def _decode(self, index: int) -> Pixels:
        try:
            return pixels(self._split.open(index), self._frame)
        except OSError as error:
            raise ConfigurationError(
                f"{self._split.names[index]}: {error}\n`vision prepare` on the same folder names all bad images at once"
            ) from error


def default_budget(local_world_size: int) -> int:
    """Bytes that one rank's cache may take of the free memory of the container (or the machine)."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    limit = memory_limit()
    if limit is not None:
        free = min(free, limit - (memory_used() or 0))
    return max(0, int(free * SHARE) // local_world_size)
