"""What `orch bench` measured on the nodes: kept, shown as a table, and what a plan is reckoned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.specs.connectivity import Matrix

_NO_MATTER = """
    epochs max-steps seed lr learning-rate min-lr schedule warmup-steps weight-decay betas clip max-norm resume run-dir
    data-dir on-nan on-spike spike-factor log-every eval-every eval-batches early-stopping patience best
    checkpoint-every keep-checkpoints keep-hours prompt sample-at-end sync shares backend
"""
NO_MATTER = frozenset(f"--{name}" for name in _NO_MATTER.split())
"""Options of a training, with a value each, that change neither how long a sample takes nor how much is sent: a
measurement without them serves a run with them. `sync` and `shares` are the plan's own question."""
NO_MATTER_FLAGS = frozenset({"--from-scratch", "--forecast", "--checkpoint-async", "--no-checkpoint-async"})


@dataclass(frozen=True, kw_only=True)
class MeasuredNode:
    """One rank as it was measured while all others were."""

    node: str
    sample_s: float
    step_s: float
    """Seconds per step besides its samples: optimizer, clipping."""
    upload: float
    """Bytes per second."""
    download: float
    micro_batch: int


@dataclass(frozen=True, kw_only=True)
class Around:
    """What else was measured of a rank; 0 where it cannot be known. Bytes, and bytes per second."""

    loaded_per_s: float = 0.0
    """Samples per second of the input pipeline alone."""
    memory_peak: float = 0.0
    memory_limit: float = 0.0
    gpu_peak: float = 0.0
    gpu_memory: float = 0.0
    disk_write: float = 0.0
    disk_read: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A `measured` event, as far as people are shown it."""

    nodes: tuple[MeasuredNode, ...]
    around: tuple[Around, ...] = ()
    samples_per_step: int
    samples_per_epoch: int = 0
    units_per_sample: float
    unit: str
    parameters: int
    latency_s: float
    links: tuple[tuple[float, ...], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """By rank."""
        return tuple(node.node for node in self.nodes)

    @property
    def mbit_s(self) -> Matrix:
        """From row's rank to column's; None where it was not tried."""
        return tuple(tuple(rate * 8 / 1e6 or None for rate in row) for row in self.links)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement, as it is kept."""

    time: str
    """ISO 8601 with zone."""
    project: str
    nodes: tuple[str, ...]
    command: tuple[str, ...]
    measured: Mapping[str, Any]
    """The trainer's own words, which `python -m trainer.forecast` reads again."""

    @property
    def figures(self) -> Figures:
        """ValueError: they are none."""
        return TypeAdapter(Figures).validate_python(self.measured)


def read_measurement(values: Any) -> Measurement | None:
    """What was kept; None where it is something else, or of a trainer that this orch does not understand."""
    try:
        measurement = TypeAdapter(Measurement).validate_python(values)  # made here: most commands read none
        figures = measurement.figures
    except ValidationError:
        return None
    return measurement if figures.nodes and min(node.sample_s for node in figures.nodes) > 0 else None


def core(command: Sequence[str]) -> tuple[str, ...]:
    """The words that decide how fast it is, in the order given: `gpt2 --epochs 3 --batch-size 2` and `gpt2 --batch-size
    2 --lr 1e-3` are one workload."""
    kept, words = [], list(command)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name in NO_MATTER:
            if not equals and words:
                words.pop(0)
        elif word not in NO_MATTER_FLAGS:
            kept.append(word)
    return tuple(kept)


def option(command: Sequence[str], *names: str) -> str | None:
    """The value of the last of these options; None where none is given."""
    found = None
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else next(iter(command[at + 1 : at + 2]), "")
    return found
