"""Measurement of nodes and links before the first step, and the cost of each sync method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from contract.json_reader import from_json

Pattern = Literal["ring", "scatter_gather"]
SMALLEST = 1e-9
"""Seconds, bytes per second and shares below this are errors of the measurement, and would overflow when divided by."""

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


class CostModelError(ValueError):
    """Values are no measurement, or a query cannot be answered: the message is for users."""


@dataclass(frozen=True, kw_only=True)
class NodeSpeed:
    """Speed of one rank, measured while all other ranks computed and sent too. `node` names it after its node."""

    node: str
    rank: int
    sample_s: float
    """Seconds per sample: forward and backward, in micro-batches of the size of the training."""
    step_s: float
    """Seconds per step besides its samples: optimizer, clipping."""
    upload: float
    """Bytes per second to the other nodes, of all ranks of its node together."""
    download: float
    """Bytes per second from the other nodes, of all ranks of its node together."""
    micro_batch: int = 1
    """Samples in one forward and backward pass."""
    host: int = -1
    """First rank of its node; -1: the node has no other."""
    inside: float = 0.0
    """Bytes per second to and from the other ranks of its node, 0 if there are none."""

    @property
    def link(self) -> float:
        """Bytes per second of the slower direction: an exchange sends as much as it receives."""
        return min(self.upload, self.download)


@dataclass(frozen=True, kw_only=True)
class SyncCost:
    """Cost of one sync method, independent of the links."""

    sync: str
    bytes_per_parameter: float
    """Bytes of one copy that is sent: 4 for fp32, 0.52 for int4."""
    codec_s_per_parameter: float
    """Seconds to encode and decode, measured on the slowest node."""
    collectives: int
    """Collectives of one exchange, one after another."""
    every: int
    """Steps between two exchanges."""
    overlap: float
    """Share of the transfer that can overlap the last micro-batch's backward pass, 0 to 1."""
    pattern: Pattern
    """Algorithm of the exchange. In both, each of k nodes sends and receives 2 (k-1)/k copies (Patarasuk 2009)."""
    efficiency: float = 1.0
    """Share of the link's rate that this pattern reaches, measured."""
    proven: bool
    """True if the loss is known to stay within 0.5 % of fp32's."""
    whole: bool = False
    """True if one rank exchanges for all of its node; else each has a part."""


@dataclass(frozen=True, kw_only=True)
class HostStats:
    """Resources of one rank's host. 0: unknown."""

    loaded_per_s: float = 0.0
    """Samples per second of the input pipeline alone, in the process that trains."""
    memory_peak: float = 0.0
    """Highest memory use of the process so far, in bytes."""
    memory_limit: float = 0.0
    """Memory limit of the container, or the memory of the machine, in bytes."""
    gpu_peak: float = 0.0
    gpu_memory: float = 0.0
    disk_write: float = 0.0
    """Bytes per second into the run's folder, with fsync."""
    disk_read: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurement of all ranks; also the values of the `measured` event."""

    nodes: tuple[NodeSpeed, ...]
    """Ranks that were measured, in order of rank."""
    latency_s: float
    """Seconds of one collective of a few bytes."""
    parameters: int
    samples_per_step: int
    """Samples of all ranks in a step."""
    units_per_sample: float
    unit: str
    """Unit of speeds: tokens, samples, images."""
    costs: tuple[SyncCost, ...]
    """Sync methods in the order in which `auto` prefers them."""
    links: tuple[tuple[float, ...], ...] = ()
    """Bytes per second from the row's rank to the column's while all ranks sent; 0: not measured."""
    samples_per_epoch: int = 0
    """Samples of an epoch; 0: unknown."""
    around: tuple[HostStats, ...] = ()
    """Resources of each rank, in order of rank; empty: not measured."""

    def cost(self, sync: str) -> SyncCost:
        """Return the cost of a sync method. CostModelError: it was not measured."""
        for cost in self.costs:
            if cost.sync == sync:
                return cost
        measured = ", ".join(cost.sync for cost in self.costs)
        raise CostModelError(f"--sync {sync}: measured were {measured}; `orch plan --measure` measures all")

    def check(self) -> None:
        """CostModelError: nothing can be computed from these values, which came from a node."""
        nodes, costs = self.nodes, self.costs
        links = [node.link for node in nodes] if len(nodes) > 1 else []
        rates = [self.units_per_sample, *links, *(node.sample_s for node in nodes), *(one.efficiency for one in costs)]
        counts = [self.samples_per_step, *(node.micro_batch for node in nodes), *(one.every for one in costs)]
        times = [self.latency_s, self.parameters, *(node.step_s for node in nodes)]
        sizes = [size for one in costs for size in (one.bytes_per_parameter, one.codec_s_per_parameter)]
        if not nodes or not costs or min(rates) < SMALLEST or min(counts) < 1 or min(*times, *sizes) < 0:
            raise CostModelError("not a measurement: without nodes or sync methods, or times and rates not above 0")


def read_measurement(values: Any) -> Measurement:
    """Read the values of a `measured` event. Unknown keys are ignored. CostModelError: they are no measurement."""
    try:
        measurement = from_json(Measurement, values)
    except ValueError as error:
        raise CostModelError(f"not a measurement: {error}") from error
    measurement.check()
    return measurement
