"""What is measured before the first step, and what each rung of the ladder costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.errors import UsageError

Pattern = Literal["ring", "scatter_gather"]


@dataclass(frozen=True, kw_only=True)
class NodeSpeed:
    """One rank, as it computed and sent while all others did the same."""

    node: str
    rank: int
    sample_s: float
    """Seconds that one sample of training costs, in micro-batches as they will run."""
    step_s: float
    """Seconds per step besides its samples: optimizer, clipping."""
    upload: float
    """Bytes per second to the other nodes."""
    download: float
    """Bytes per second from the other nodes."""
    micro_batch: int = 1
    """Samples in one forward and backward pass."""

    @property
    def link(self) -> float:
        """Bytes per second, of the slower direction: an exchange sends as much as it receives."""
        return min(self.upload, self.download)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one rung costs, whatever the link."""

    sync: str
    bytes_per_parameter: float
    """Of one copy that is sent: 4 for fp32, 0.52 for int4."""
    codec_s_per_parameter: float
    """Seconds to encode and decode, measured on the slowest node."""
    collectives: int
    """Of one exchange, one after another."""
    every: int
    """Steps between two exchanges."""
    overlap: float
    """Share of what travels that can do so while the last micro-batch's backward pass goes on, 0 to 1."""
    pattern: Pattern
    """How it travels. Either way each of k nodes sends and receives 2 (k-1)/k copies (Patarasuk and Yuan 2009)."""
    efficiency: float = 1.0
    """Share of the link's rate that this pattern reaches, measured."""
    proven: bool
    """Whether its loss is known to stay within 0.5 % of fp32's."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    nodes: tuple[NodeSpeed, ...]
    latency_s: float
    """Seconds of one collective of a few bytes."""
    parameters: int
    samples_per_step: int
    """Over all ranks."""
    units_per_sample: float
    unit: str
    """What speed is told in: tokens, samples, images."""
    costs: tuple[Cost, ...]
    """The rungs, gentlest first: the order in which `auto` prefers them."""
    links: tuple[tuple[float, ...], ...] = ()
    """Bytes per second from row's rank to column's while all sent; 0 where this was not tried."""

    def cost(self, sync: str) -> Cost:
        """UsageError: nobody measured such a rung."""
        for cost in self.costs:
            if cost.sync == sync:
                return cost
        raise UsageError(f"--sync {sync}: expected auto or one of {', '.join(cost.sync for cost in self.costs)}")
