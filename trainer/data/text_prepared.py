"""Prepared texts: token ids and labels, tokenized once and mapped into memory, and the model that they are for.

Everything a training needs lies in the one folder, pretrained weights too: nodes need neither the hub nor
`transformers`. Files carry their content's hash in their name, and the manifest is replaced last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.order import Indices
from trainer.data.text_manifest import TextManifest

SPLITS = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class PreparedText(TextManifest):
    @property
    def sha256(self) -> str:
        """Hash of all prepared content: folders with the same hash are the same."""
        return str(self.manifest["content_sha256"])

    @property
    def tokenizer_file(self) -> Path:
        return self.file("tokenizer")

    @property
    def weights_file(self) -> Path | None:
        return self.file("weights") if self.has_weights else None

    def file(self, role: str) -> Path:
        return self.folder / str(self.manifest["files"][role]["file"])


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
