"""What a training would take, as the trainer reckons it from a measurement: what `trainer.forecast` answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True, kw_only=True)
class Way:
    """Some nodes under one way of synchronising."""

    sync: str
    """The rung of the ladder; `alone` for a single node."""
    nodes: tuple[str, ...]
    shares: tuple[int, ...]
    compute_s: float
    exchange_s: float
    step_s: float
    per_s: float
    """Units per second, of all nodes."""
    speedup: float
    """Over the best single node."""
    sent_bytes: float
    """That each node sends in a step."""
    proven: bool
    """Whether the loss is known to stay as it is without."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One node, with and without it."""

    node: str
    taken: bool
    effect: str
    with_s: float
    without_s: float
    alone_s: float
    share: int
    micro_batch: int
    passes: int


@dataclass(frozen=True, kw_only=True)
class LargerStep:
    """A step of more samples."""

    multiple: int
    samples_per_step: int
    row: Way
    efficiency: float


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """The whole answer. The fields are the trainer's (`trainer/forecast/plan.py`)."""

    unit: str
    units_per_sample: float
    samples_per_step: int
    samples: int | None
    alone: Way
    chosen: Way
    by_size: tuple[Way, ...]
    rows: tuple[Way, ...]
    members: tuple[Effect, ...]
    larger: tuple[LargerStep, ...]
    enough: int
    warnings: tuple[str, ...]

    def finish_s(self, way: Way) -> float | None:
        """Seconds of the whole training; None where its length was not asked for."""
        return None if self.samples is None else self.samples / self.samples_per_step * way.step_s

    def machines(self, names: Collection[str]) -> tuple[str, ...]:
        """The nodes of the chosen way, of those with these names; several ranks of one are one."""
        return tuple(dict.fromkeys(machine(label, names) for label in self.chosen.nodes))


def machine(label: str, names: Collection[str]) -> str:
    """`alpha` of `alpha`, and of its rank `alpha.1` where no node is called that."""
    return label if label in names else label.rpartition(".")[0]


def read_prospect(values: Any) -> Prospect | None:
    """None where it is no answer. What a newer trainer adds is ignored."""
    try:
        return TypeAdapter(Prospect).validate_python(values)  # made here: most commands read none
    except ValidationError:
        return None
