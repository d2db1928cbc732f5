"""Sizes of encoders with random weights. Needs no torch."""

from __future__ import annotations

from trainer.errors import OptionError

RANDOM = "random:"
SIZES = {
    # layers, attention heads, width: those of Google's BERT miniatures (Turc et al. 2019, arXiv 1908.08962)
    "tiny": (2, 2, 128),
    "mini": (4, 4, 256),
    "small": (4, 8, 512),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
}


def of(name: str) -> tuple[int, int, int]:
    size = name.removeprefix(RANDOM)
    if size not in SIZES:
        raise OptionError(f"--model-name {name}: expected {RANDOM} and one of {', '.join(SIZES)}")
    return SIZES[size]
