"""Outputs of the frozen layers for each text, cached on disk: computed once per text, then memory-mapped.

Rows are as long as their texts, without padding. Several ranks of one machine may share a file: they write the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.files import write_atomic
from trainer.data.order import Indices

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FrozenRows:
    def __init__(self, folder: Path, name: str, lengths: NDArray[np.int64], width: int, dtype: str) -> None:
        """`name`: identifies what the rows depend on (weights, texts, cut). `dtype`: a numpy type of
        the bits."""
        self._made_of = (folder, name, lengths, width, dtype)
        self._state = folder / f"frozen-{name}.json"
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self.lengths = lengths
        self.width = width
        self.dtype = dtype
        folder.mkdir(parents=True, exist_ok=True)
        self._forget_what_may_not_be_on_disk(folder, name)
        self._rows = _mapped(folder / f"frozen-{name}.rows", np.dtype(dtype), (int(self._starts[-1]), width))
        self._known = _mapped(folder / f"frozen-{name}.known", np.dtype(np.uint8), (len(lengths),))
        self._complete = bool(self._known.all())

    def __reduce__(self) -> tuple[type[FrozenRows], tuple[Path, str, NDArray[np.int64], int, str]]:
        return FrozenRows, self._made_of

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def known(self, indices: Indices) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self._known[indices] != 0
        return known

    def read(self, indices: Indices, length: int) -> NDArray[np.generic]:
        """(rows, length, width), zeros where a row is shorter or not known yet."""
        rows = np.zeros((len(indices), length, self.width), self._rows.dtype)
        for at, index in enumerate(indices):
            if self._known[index]:
                start, end = self._starts[index], self._starts[index + 1]
                rows[at, : end - start] = self._rows[start:end]
        return rows

    def write(self, indices: Indices, rows: NDArray[np.generic]) -> None:
        for row, index in zip(rows, indices, strict=True):
            start, end = self._starts[index], self._starts[index + 1]
            self._rows[start:end] = row[: end - start]
        self._known[indices] = 1  # after the rows: whoever sees the mark sees them
        if not self._complete and self._known.all():
            self._complete = True
            self._rows.flush()
            self._known.flush()
            write_atomic(self._state, json.dumps({"complete": True}).encode())

    def _forget_what_may_not_be_on_disk(self, folder: Path, name: str) -> None:
        """A mark may reach the disk before its row does. That matters after a power cut, not after a killed process."""
        boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
        try:
            state = json.loads(self._state.read_text())
        except (OSError, ValueError):
            state = {}
        if not state.get("complete") and state.get("boot") != boot:
            (folder / f"frozen-{name}.known").unlink(missing_ok=True)
            write_atomic(self._state, json.dumps({"boot": boot}).encode())


def _mapped(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> np.memmap[tuple[int, ...], np.dtype]:
    """A file of zeros to begin with, which takes room on the disk only where something was written."""
    size = int(np.prod(shape)) * dtype.itemsize
    with path.open("ab") as file:
        file.truncate(size)
    return np.memmap(path, dtype, "r+", shape=shape)
