"""What follows from the number of a step alone: the learning rate, the noise, and which step is the last."""

from __future__ import annotations

import hashlib
import math

from trainer.config import TrainOptions


def learning_rate(step: int, total: int, *, highest: float, lowest: float, warmup: int) -> float:
    """For optimizer step `step` (the first is 1): a line up over `warmup` steps, then half a cosine down."""
    if step <= warmup:
        return highest * step / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * progress)) / 2


def last_step(options: TrainOptions, at: tuple[int, int], sequences: int, samples: int) -> int:
    """The step after which `--epochs` or `--max-steps` is fulfilled, whichever comes first.

    `at`: the step and the position in the stream of samples that the run starts from.
    """
    step, cursor = at
    epochs = options.epochs or (None if options.max_steps else 1)
    ends = [options.max_steps] if options.max_steps else []
    if epochs:
        left = max(0, epochs * samples - cursor) // sequences
        ends.append(max(1, step + left))
    return min(ends)


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Chance that needs no memory: a resumed step draws what the uninterrupted one drew."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=7).digest(), "big")
