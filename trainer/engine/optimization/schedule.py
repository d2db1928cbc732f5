"""Schedule that follows from the number of a step alone: the learning rate, the noise, and which step is the last."""

from __future__ import annotations

import hashlib
import math

from trainer.config import Every, TrainOptions


def learning_rate(step: int, total: int, options: TrainOptions) -> float:
    """Return the rate of optimizer step `step` of `total` (the first is 1): up to --lr at step --warmup-steps, then
    the schedule.

    `linear` and `cosine` fall as in torch and transformers: the step after the warmup has --lr, and --min-lr would be
    that of the step after the last one, which with 0 would train nothing.
    """
    highest = options.lr
    lowest = highest / 10 if options.min_lr is None else options.min_lr
    if options.schedule == "onecycle":
        return _one_cycle(step, total, highest)
    if step <= options.warmup_steps:
        return highest * step / options.warmup_steps
    progress = min(1.0, (step - 1 - options.warmup_steps) / max(1, total - options.warmup_steps))
    if options.schedule == "constant":
        return highest
    if options.schedule == "linear":
        return highest + (lowest - highest) * progress
    return _half_cosine(highest, lowest, progress)


def _one_cycle(step: int, total: int, highest: float) -> float:
    """Smith and Topin, arXiv:1708.07120, as torch.optim.lr_scheduler.OneCycleLR: from a 25th up during 30 % of the
    steps, then down to a ten-thousandth of where it began. That also cycles AdamW's beta1; here --betas holds."""
    first = highest / 25
    peak, last = 0.3 * total - 1, total - 1
    if step - 1 <= peak:
        return _half_cosine(first, highest, (step - 1) / peak if peak else 0.0)
    return _half_cosine(highest, first / 1e4, (step - 1 - peak) / (last - peak))


def _half_cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def due(every: Every, step: int, cursor: int, per_step: int, samples: int) -> bool:
    """Return whether it is time after `step`, which ended at position `cursor` of the stream: every so many steps (0:
    never), or where an epoch has ended."""
    if every == "epoch":
        return cursor // samples > (cursor - per_step) // samples
    return every > 0 and step % every == 0


def last_step(options: TrainOptions, at: tuple[int, int], per_step: int, samples: int) -> int:
    """The step after which `--epochs` or `--max-steps` is fulfilled, whichever comes first.

    `at`: the step and the position in the stream of samples that the run starts from.
    """
    step, cursor = at
    epochs = options.epochs or (None if options.max_steps else 1)
    ends = [options.max_steps] if options.max_steps else []
    if epochs:
        left = max(0, epochs * samples - cursor) // per_step
        ends.append(max(1, step + left))
    return min(ends)


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Chance that needs no memory: a resumed step draws what the uninterrupted one drew."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=7).digest(), "big")
