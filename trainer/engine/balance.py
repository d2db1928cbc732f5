"""Shares of a step that let all ranks finish together, also when one becomes slower while training."""

from __future__ import annotations

from collections.abc import Sequence

from contract.cost_model.shares import split

WINDOW = 16
"""Steps whose mean counts, without the slowest and the fastest: a hiccup is no slowdown."""
WORTH_IT = 0.85
"""A new split must let the slowest rank finish in less than this share of the time."""
NEWS = 0.5
"""Weight of a window against what was believed before: nodes that share something would swing to and fro."""


class Balance:
    """Hears how long a sample takes on each rank, and decides on all ranks alike."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        self.looked = 0
        """How often shares could have changed since the beginning."""
        self._heard: list[Sequence[float]] = []
        self._believed: list[float] = []

    def hear(self, sample_s: Sequence[float]) -> tuple[int, ...] | None:
        """Seconds a sample of this step, by rank. The new shares where others are worth it."""
        self._heard.append(sample_s)
        if len(self._heard) < WINDOW:
            return None
        usual = [sum(sorted(column)[2:-2]) / (WINDOW - 4) for column in zip(*self._heard, strict=True)]
        self._heard = []
        self.looked += 1
        if min(usual) <= 0:
            return None
        before = self._believed or usual
        self._believed = [NEWS * new + (1 - NEWS) * old for new, old in zip(usual, before, strict=True)]
        shares = better(sum(self.shares), self.shares, self._believed)
        self.shares = shares or self.shares
        return shares


def better(total: int, shares: Sequence[int], sample_s: Sequence[float]) -> tuple[int, ...] | None:
    """How `total` samples are split at these speeds, where that is worth a change from `shares`."""
    new = split(total, sample_s)
    before, after = (max(n * s for n, s in zip(part, sample_s, strict=True)) for part in (shares, new))
    return new if after < WORTH_IT * before else None


def told(names: Sequence[str], before: Sequence[int], after: Sequence[int]) -> str:
    """`alpha 8 → 12, beta 8 → 4` of what has changed."""
    pairs = zip(names, before, after, strict=True)
    return ", ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now)
