"""Share of a GPU that a batch uses, estimated before the first step, and the batch that would use more of it."""

from __future__ import annotations

from dataclasses import dataclass

REACHED = 0.45
"""Share of its peak rate that a GPU reaches while it computes."""
KERNELS = 4.5
"""Kernels of a step for each trained tensor: 679 for the 148 of a compiled GPT-2 124M (docs/benchmarks.md)."""
LAUNCH_S = 10e-6
"""Time in which a CPU launches a kernel."""
LITTLE, MUCH = 0.8, 0.9
"""Shares of a GPU below which a larger batch is recommended, and that it is to reach."""
MOST = 16
"""Times the batch that is recommended at most: more of them is another training."""


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """Cost of forward and backward passes on a GPU. Numbers of 0: not known."""

    flops: float
    """Operations for each sample."""
    peak: float
    """Peak rate of the GPU, in FLOP/s."""
    tensors: int
    """Trained tensors."""

    def use(self, samples: int) -> float:
        """Estimate the share of the time in which the GPU computes; 1 where that is not known.

        Of GPT-2 124M on an H200 70 % for 8 texts of 1024 tokens and 82 % for 16; measured 63 and 90 %
        (docs/benchmarks.md).
        """
        if not (self.flops > 0 and self.peak > 0):
            return 1.0
        computing_s = samples * self.flops / (REACHED * self.peak)
        return computing_s / (computing_s + LAUNCH_S * KERNELS * self.tensors)


def larger_batch(cost: PassCost, samples: int, most: int) -> int:
    """Samples of the smallest pass that uses much of the GPU, of at most `most`; 0 where `samples` use enough of it, or
    nothing better is allowed."""
    if cost.use(samples) >= LITTLE:
        return 0
    larger = samples
    while cost.use(larger) < MUCH and 2 * larger <= min(most, MOST * samples):
        larger *= 2
    return larger if larger > samples else 0


def recommendation(cost: PassCost, samples: int, most: int, option: str = "--batch-size") -> str:
    """Line for people about a pass of `samples` that leaves much of the GPU idle; empty where it does not."""
    larger = larger_batch(cost, samples, most)
    if not larger:
        return ""
    return (
        f"batch {samples} uses {_about(cost.use(samples))} of this GPU, which waits for kernel launches (estimate):"
        f" {option} {larger} would use {_about(cost.use(larger))}, if it fits into memory"
    )


def _about(share: float) -> str:
    return "less than 10 %" if share < 0.1 else f"about {round(10 * share) * 10} %"
