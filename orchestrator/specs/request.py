"""A request for a run, from the command line or from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from contract.checkpoint import StartPoint
from contract.cost_model.memory import TransformerTraining
from contract.downloads import Source
from orchestrator.specs.data import DataFolder
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.launch_options import ABSENCE_S, DEFAULT_COMMAND, RunSettings
from orchestrator.specs.program import Program


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(RunSettings):
    """A run to be planned: which nodes, which command, with what."""

    project: str
    nodes: tuple[NodeSpec, ...]
    command: tuple[str, ...] = DEFAULT_COMMAND
    """A workload of the trainer with its options, or `python SCRIPT …` of the user's."""
    attempt_options: tuple[str, ...] = ()
    """Options of this attempt alone, as they were typed."""
    master_port: int = 12355
    exact_port: bool = False
    """True if it is that port or none; otherwise the next free one is taken."""
    master: str = ""
    """Node of rank 0; the first one where empty."""
    own_code: bool = False
    """True if the run's folder holds the user's code: containers then start in it."""
    workdir: Path | None = None
    """Folder of the controller that this code is copied from; None where it lies there already."""
    data: tuple[DataFolder, ...] = ()
    """Data of the run: each node gets it once, by content."""
    downloads: tuple[Source, ...] = ()
    """Downloads of one node, copied to the others before the containers start."""
    data_command: str = ""
    """Makes the data that the command reads, where none is brought: empty where it is, or where none is read."""
    additions: str = ""
    """Hash of the packages that the inventory adds to the image; empty where it adds none."""
    imports: Mapping[str, str] = field(default_factory=dict)
    """Modules of packages that the user's script imports whenever it starts, each with the place that does."""
    possible_imports: Mapping[str, str] = field(default_factory=dict)
    """Modules that it may import later, each with the place that does."""
    requirements: str = ""
    """File of packages that the inventory names; empty where it names none."""
    dockerfile: str = ""
    """The user's own Dockerfile that the inventory names; empty where it names none."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Packages that the command needs and that an image has only where a project adds them, each with the command that
    adds it."""
    cluster: str = ""
    """Cluster that starts the run as one job; empty: the nodes are machines of the inventory."""
    agent_digest: str = ""
    """Digest of the agent that is copied to the nodes for an image without one, which orch has not built."""
    sizes: TransformerTraining | None = None
    """Sizes of the training on which its memory depends, for a forecast; None: not known."""
    code_digest: str = ""
    code_origin: str = ""
    """Content of the code, and its absolute folder on the controller that launched the run first: where `workdir` is
    None, a node that lacks it still gets it."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the controller with content that was just read, by the digest of that."""
    absence_s: int = ABSENCE_S
    """Seconds that the nodes of a run wait for an absent one."""
    away: tuple[str, ...] = ()
    """Nodes that were given up, and are added back when they return."""
    process_group_timeout_s: int = 300

    @cached_property
    def program(self) -> Program:
        """The command, classified."""
        return Program.of(self.command)

    def at_port(self, port: int) -> LaunchRequest:
        """The request with this port where none was asked for."""
        return self if self.exact_port else replace(self, master_port=port)

    def image_tag(self, device: str) -> str:
        """The image that a node with this device runs."""
        return self.image or f"orch/{self.project}:{self.profile or device}"


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Id, user and time of a run; arguments, so that planning stays pure."""

    run_id: str
    user: str
    started_at: str
    attempt: int = 0
    claim: str = ""
    """Id of the attempt's claim; empty: the attempt is not claimed on nodes, as a job of a cluster."""
    resumes: StartPoint | None = None
    """The checkpoint that the attempt resumes from; None: it begins at step 0."""
