"""Lengths of texts in tokens, and the cost and loss of --max-length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)
STEP = 32
"""The advised length is a multiple of this."""


def figures(lengths: NDArray[np.int64]) -> dict[str, int]:
    """The percentiles are lengths that texts have: so many per cent of them are no longer."""
    found = {f"p{share}": int(np.percentile(lengths, share, method="higher")) for share in PERCENTILES}
    return {"texts": len(lengths), **found, "max": int(lengths.max())}


def advice(lengths: NDArray[np.int64], longest: int) -> int:
    """The smallest round length that cuts at most one text of a hundred, as far as the model can read."""
    return min(-(-figures(lengths)["p99"] // STEP) * STEP, longest)


def report(lengths: NDArray[np.int64], longest: int, max_length: int | None = None) -> Iterator[str]:
    """Lines for people."""
    known = figures(lengths)
    told = "  ".join(f"{name} {value}" for name, value in known.items() if name != "texts")
    yield f"tokens per text, of {known['texts']} texts: {told}"
    for length in sorted({128, 256, advice(lengths, longest), *([max_length] if max_length else [])}):
        if length <= longest:
            yield "  " + _at(lengths, length)
    advised = advice(lengths, longest)
    reason = "cuts at most one text of a hundred" if advised < longest else "is as far as the model reads"
    yield f"advice: --max-length {advised} {reason}"


def _at(lengths: NDArray[np.int64], length: int) -> str:
    kept = np.minimum(lengths, length)
    cut = int((lengths > length).sum())
    return (
        f"--max-length {length:<4} cuts {cut} texts ({cut / len(lengths):.1%}); padding all to it would make"
        f" {length * len(lengths) / kept.sum():.1f} times the work that bucketing makes"
    )


def as_json(lengths: NDArray[np.int64], longest: int) -> dict[str, Any]:
    return {**figures(lengths), "advice": advice(lengths, longest)}
