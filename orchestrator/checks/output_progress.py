"""Progress that agents have read from the output of a program: which report counts, and its words for people.

No decision depends on it: a program may print anything.
"""

from __future__ import annotations

from contract.cost_model.units import duration
from contract.events import OutputProgress

SOURCE = "(read from its output)"
UNITS = {"steps": "steps/s", "it": "it/s"}
LONGEST_S = 10 * 365 * 86400.0
"""Longest remaining time that is shown: a node may report anything."""
SILENT_S = 60.0
"""Time without news of a rank after which that of a higher one counts."""


def output_words(event: OutputProgress | None, *, running: bool, age_s: float = 0.0) -> str:
    """`epoch 3/10 · step 120/400 · loss 2.31 · 12 min left   (read from its output)`; empty without progress. `age_s`:
    seconds since the event."""
    if event is None:
        return ""
    words = []
    if event.epoch is not None:
        words.append(f"epoch {event.epoch:g}" + (f"/{event.epochs:,}" if event.epochs else ""))
    if event.step is not None:
        words.append(f"step {event.step:,}" + (f"/{event.steps:,}" if event.steps else ""))
        if event.share is not None and event.epoch is not None and not event.epochs:
            words.append(f"{event.share:.0%} of this pass")
    if event.loss is not None:
        words.append(f"loss {event.loss:.4g}")
    if running and event.per_s is not None and event.unit in UNITS:
        words.append(f"{event.per_s:,.3g} {UNITS[event.unit]}")
    if running and (left := remaining_s(event, age_s)) is not None:
        words.append(f"{duration(left)} left")
    return f"{' · '.join(words)}   {SOURCE}" if words else ""


def output_share(event: OutputProgress) -> float | None:
    """Part of the training that is done, from 0 to 1; None where the output does not say how long it is."""
    if event.epoch is None:
        return event.share
    if not event.epochs:
        return None
    passed = (
        event.epoch - 1 + event.share if event.epoch == int(event.epoch) and event.share is not None else event.epoch
    )
    return min(1.0, max(0.0, passed / event.epochs))


def remaining_s(event: OutputProgress, age_s: float = 0.0) -> float | None:
    """Estimated seconds to the end, so long after the event; None: not known, or past."""
    left = None if event.remaining_s is None else event.remaining_s - max(0.0, age_s)
    return left if left is not None and 0 < left < LONGEST_S else None


def output_place(event: OutputProgress) -> float | None:
    """Position on the axis of a curve, which grows over epochs: in steps where their number per epoch is known,
    otherwise in epochs, otherwise in steps of the whole training."""
    if event.epoch is not None and event.epoch == int(event.epoch) and event.step is not None and event.steps:
        return event.epoch * event.steps + min(event.step, event.steps)
    return event.epoch if event.epoch is not None else event.step
