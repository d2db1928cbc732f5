"""Lengths of texts in tokens, and the cost and loss of --max-length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)
STEP = 32
"""The advised length is a multiple of this."""


def figures(lengths: NDArray[np.int64]) -> dict[str, int]:
    """Number of texts, percentiles (lengths that texts have) and maximum."""
    found = {f"p{share}": int(np.percentile(lengths, share, method="higher")) for share in PERCENTILES}
    return {"texts": len(lengths), **found, "max": int(lengths.max())}


def advice(lengths: NDArray[np.int64], longest: int) -> int:
    """The smallest round length that cuts at most one text of a hundred, at most `longest`, the model's limit."""
    return min(-(-figures(lengths)["p99"] // STEP) * STEP, longest)


def report(lengths: NDArray[np.int64], longest: int, max_length: int | None = None) -> Iterator[str]:
    """Yield lines for people."""
    known, advised = figures(lengths), advice(lengths, longest)
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
