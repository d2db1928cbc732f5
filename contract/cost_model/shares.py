"""Shares of a step for nodes of unequal speed, so that all finish together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from contract.cost_model.measurement import CostModelError


def split(samples_per_step: int, sample_s: Sequence[float], step_s: Sequence[float] = ()) -> tuple[int, ...]:
    """Return the samples of each node, at least one, so that the last node finishes as early as possible.

    `sample_s`: seconds of a node for one sample; `step_s`: its seconds per step besides samples (empty: 0 for all).
    Most samples are assigned by rate, and each of the rest to the node that would finish it first: optimal for equal
    work items on unequal machines.
    CostModelError: fewer samples than nodes.
    """
    if samples_per_step < len(sample_s):
        raise CostModelError(
            f"a step of {samples_per_step} samples cannot be shared by {len(sample_s)} ranks:"
            " give a larger --global-batch-size, or fewer nodes"
        )
    fixed = step_s or [0.0] * len(sample_s)
    shares = _by_rate(samples_per_step, sample_s, fixed)
    done = [(fixed[at] + (share + 1) * sample_s[at], at) for at, share in enumerate(shares)]
    heapq.heapify(done)
    for _ in range(samples_per_step - sum(shares)):
        finish, first = done[0]
        shares[first] += 1
        heapq.heapreplace(done, (finish + sample_s[first], first))
    return tuple(shares)


def _by_rate(samples: int, sample_s: Sequence[float], fixed: Sequence[float]) -> list[int]:
    """Round the exact shares, with which all nodes finish at once, down to whole samples; no share is below one."""
    sharing, left = list(range(len(sample_s))), samples
    shares = [1] * len(sample_s)
    while True:
        rate = sum(1 / sample_s[at] for at in sharing)
        done_at = (left + sum(fixed[at] / sample_s[at] for at in sharing)) / rate
        slow = {at for at in sharing if done_at - fixed[at] < sample_s[at]}
        if not slow or len(slow) == len(sharing):
            break
        sharing = [at for at in sharing if at not in slow]
        left -= len(slow)
    for at in sharing:
        shares[at] = max(1, int((done_at - fixed[at]) / sample_s[at]))
    return shares


def micro_batches(share: int, most: int) -> tuple[int, int]:
    """Return samples of a forward pass and number of passes: as few equal passes of at most `most` samples as possible,
    since a small last pass costs nearly as much as a full one. (0, 0) for a share of 0."""
    if share < 1:
        return 0, 0
    passes = -(-share // max(1, most))
    return -(-share // passes), passes
