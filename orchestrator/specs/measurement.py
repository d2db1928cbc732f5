"""Measurements of `orch bench`, saved for `orch plan`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from contract.cost_model.measurement import Measurement
from contract.json_reader import from_json

_SPEED_NEUTRAL = """
    epochs max-steps seed lr learning-rate min-lr schedule warmup-steps weight-decay betas clip max-norm resume run-dir
    data-dir preprocessed-dir on-nan on-spike spike-factor log-every eval-every eval-batches early-stopping patience
    best checkpoint-every keep-checkpoints keep-hours prompt sample-at-end reporter sync shares backend outer-lr
    outer-momentum
"""
SPEED_NEUTRAL = frozenset(f"--{name}" for name in _SPEED_NEUTRAL.split())
"""Options with a value that change neither the time of a sample nor the bytes that are sent: a measurement without them
is valid for a run with them. `sync` and `shares` are part of the query."""
SPEED_NEUTRAL_FLAGS = frozenset(
    {"--from-scratch", "--forecast", "--no-forecast", "--checkpoint-async", "--no-checkpoint-async"}
)


@dataclass(frozen=True, kw_only=True)
class SavedMeasurement:
    """A measurement on this computer's disk."""

    time: str
    """ISO 8601 with zone."""
    project: str
    nodes: tuple[str, ...]
    command: tuple[str, ...]
    measured: Measurement


def read_saved(values: Any) -> SavedMeasurement | None:
    """Read a saved measurement; None for anything else, and for a measurement of an incompatible version."""
    try:
        saved = from_json(SavedMeasurement, values)
        saved.measured.check()
    except ValueError:
        return None
    return saved


def core(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words that decide the speed, in their order: `gpt2 --epochs 3 --batch-size 2` and `gpt2 --batch-size 2
    --lr 1e-3` are the same workload."""
    return without_options(command, SPEED_NEUTRAL, SPEED_NEUTRAL_FLAGS)


def without_options(command: Sequence[str], names: Collection[str], flags: Collection[str] = ()) -> tuple[str, ...]:
    """Return the command without the options of these names, with their values, and without these flags."""
    kept, words = [], list(command)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name in names:
            if not equals and words:
                words.pop(0)
        elif word not in flags:
            kept.append(word)
    return tuple(kept)


def option(command: Sequence[str], *names: str) -> str | None:
    """Return the value of the last of these options; None if none is given."""
    found = None
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else next(iter(command[at + 1 : at + 2]), "")
    return found
