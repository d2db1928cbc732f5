"""What the user asked for, on the command line or from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Mount


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A run to be planned: which nodes, which command, with what."""

    project: str
    nodes: tuple[NodeSpec, ...]
    command: tuple[str, ...] = ("gpt2",)
    """A workload of the trainer with its options, or `python SCRIPT …` of the user's."""
    profile: str = ""
    """Image for all nodes: cpu or cuda; by each node's device where empty."""
    master_port: int = 12355
    master: str = ""
    """Node of rank 0; the first one where empty."""
    own_code: bool = False
    """Whether the run's folder holds the user's code: containers then start in it."""
    workdir: Path | None = None
    """Folder of the controller that this code is copied from; None where it lies there already."""
    data: Path | None = None
    """Folder of the controller with prepared data: each node gets it once, by content."""
    data_digest: str = ""
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    """How often Docker starts a failed container again."""
    process_group_timeout_s: int = 300

    def image_tag(self, device: str) -> str:
        """The image that a node with this device runs."""
        return f"orch/{self.project}:{self.profile or device}"


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What makes this run this one; given from outside, so that planning stays pure."""

    run_id: str
    user: str
    started_at: str
    attempt: int = 0
