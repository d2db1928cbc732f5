"""One node as the doctor saw it: what it told, and what could not be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.specs.data import ComparedData
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.gpus import NodeGpus
from orchestrator.specs.host import HostFacts, InsideFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.network import NetworkFacts, Path
from orchestrator.specs.reach import Reach
from orchestrator.specs.run import ContainerFacts


@dataclass(frozen=True, kw_only=True)
class OutOfReach:
    """Obstacle that kept orch from reaching a node."""

    why: Reach
    message: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A part that is None was not asked, or gave no answer: `silent` says why."""

    spec: NodeSpec
    round_trip_ms: float | None = None
    out_of_reach: OutOfReach | None = None
    facts: NodeFacts | None = None
    engine_error: str = ""
    """Reason why its container engine gave no answer."""
    engine_runs: bool = False
    """True if it is there all the same: it answered with an error, or took the question and gave no answer in time."""
    held: tuple[ContainerFacts, ...] = ()
    """Containers of runs that its engine holds, ended ones included."""
    blind_runs: tuple[str, ...] = ()
    """Runs whose container there began with GPUs and sees none any more."""
    host: HostFacts | None = None
    inside: InsideFacts | None = None
    gpus: NodeGpus | None = None
    network: NetworkFacts | None = None
    paths: tuple[Path, ...] = ()
    manifests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each dataset's manifest there, by the dataset's folder."""
    data: ComparedData | None = None
    """Its data, where it was compared."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Reason why a part is missing, by the name of the part."""

    @property
    def name(self) -> str:
        return self.spec.name
