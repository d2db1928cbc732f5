"""Shares of a step that let all ranks finish together, also when one becomes slower while training."""

from __future__ import annotations

from collections.abc import Sequence

from contract.cost_model.shares import split

WINDOW = 16
"""Steps whose mean counts, without the slowest and the fastest: a hiccup is no slowdown."""
WORTH_IT = 0.85
"""A new split must let the slowest rank finish in less than this share of the time."""
NEW_WEIGHT = 0.5
"""Weight of a window against the estimate so far: nodes that share something would swing to and fro otherwise."""


class ShareBalancer:
    """Decision on the ranks' shares from the time of a sample on each of them, the same on all ranks."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        self.checks = 0
        """Number of windows after which shares could have changed."""
        self._window: list[Sequence[float]] = []
        self._estimate: list[float] = []

    def update(self, sample_s: Sequence[float]) -> tuple[int, ...] | None:
        """Add the seconds a sample took in this step, by rank. Return new shares where they are worth a change."""
        self._window.append(sample_s)
        if len(self._window) < WINDOW:
            return None
        usual = [sum(sorted(column)[2:-2]) / (WINDOW - 4) for column in zip(*self._window, strict=True)]
        self._window = []
        self.checks += 1
        if min(usual) <= 0:
            return None
        before = self._estimate or usual
        self._estimate = [NEW_WEIGHT * new + (1 - NEW_WEIGHT) * old for new, old in zip(usual, before, strict=True)]
        shares = better(sum(self.shares), self.shares, self._estimate)
        self.shares = shares or self.shares
        return shares


def better(total: int, shares: Sequence[int], sample_s: Sequence[float]) -> tuple[int, ...] | None:
    """How `total` samples are split at these speeds, where that is worth a change from `shares`."""
    new = split(total, sample_s)
    before, after = (max(n * s for n, s in zip(part, sample_s, strict=True)) for part in (shares, new))
    return new if after < WORTH_IT * before else None


def changed_shares(names: Sequence[str], before: Sequence[int], after: Sequence[int]) -> str:
    """Text of the shares that have changed: `alpha 8 → 12, beta 8 → 4`."""
    pairs = zip(names, before, after, strict=True)
    return ", ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now)
