"""Prepared texts in memory: token ids mapped from their file, and labels; statistics of their lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifests import PreparedText
from trainer.data.order import Indices

SPLITS = ("train", "validation")
PERCENTILES = (50, 90, 95, 99)
STEP = 32
"""The advised length is a multiple of this."""


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

    def pack(
        self, indices: Indices
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Token ids of texts in one row, sorted by length; the fields `places`, `starts`, `bounds` of `Packed`."""
        lengths = self.lengths[indices]
        order = np.argsort(lengths, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(lengths[order])])
        tokens = np.empty(bounds[-1], np.int64)
        for index, begin, end in zip(indices[order], bounds[:-1], bounds[1:], strict=True):
            first, last = self._offsets[index], self._offsets[index + 1]
            tokens[begin:end] = self._tokens[first : first + end - begin]
            tokens[end - 1] = self._tokens[last - 1]
        starts = np.empty(len(indices), np.int64)
        starts[order] = bounds[:-1]
        places = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths[order])
        return tokens, places, starts, bounds.astype(np.int32)


# ── Lengths of texts in tokens ────────────────────────────────────────────────────────────────────────────────────────


def length_statistics(lengths: NDArray[np.int64]) -> dict[str, int]:
    """Number of texts, percentiles (lengths that texts have) and maximum."""
    found = {f"p{share}": int(np.percentile(lengths, share, method="higher")) for share in PERCENTILES}
    return {"texts": len(lengths), **found, "max": int(lengths.max())}


def advised_length(lengths: NDArray[np.int64], longest: int) -> int:
    """The smallest round length that cuts at most one text of a hundred, at most `longest`, the model's limit."""
    return min(-(-length_statistics(lengths)["p99"] // STEP) * STEP, longest)


def length_report(lengths: NDArray[np.int64], longest: int, max_length: int | None = None) -> Iterator[str]:
    """Yield lines for people."""
    known, advised = length_statistics(lengths), advised_length(lengths, longest)
    values = "  ".join(f"{name} {value}" for name, value in known.items() if name != "texts")
    yield f"tokens per text, of {known['texts']} texts: {values}"
    for length in sorted({128, 256, advised, *([max_length] if max_length else [])}):
        if length <= longest:
            cut = int((lengths > length).sum())
            work = length * len(lengths) / np.minimum(lengths, length).sum()
            yield (
                f"  --max-length {length:<4} cuts {cut} texts ({cut / len(lengths):.1%}); padding all to it would make"
                f" {work:.1f} times the work that bucketing makes"
            )
    reason = "cuts at most one text of a hundred" if advised < longest else "is as far as the model reads"
    yield f"advice: --max-length {advised} {reason}"
