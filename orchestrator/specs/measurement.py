"""Measurements of `orch bench`, saved for `orch plan`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from contract.cost_model.measurement import SPEED_NEUTRAL, SPEED_NEUTRAL_FLAGS, Measurement
from contract.json_reader import from_json


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
    """Read a saved measurement; None for anything else."""
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
    remaining, words = [], list(command)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name in names:
            if not equals and words:
                words.pop(0)
        elif word not in flags:
            remaining.append(word)
    return tuple(remaining)


def option(command: Sequence[str], *names: str) -> str | None:
    """Return the value of the last of these options; None if none is given."""
    found = None
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else next(iter(command[at + 1 : at + 2]), "")
    return found
