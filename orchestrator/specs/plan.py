"""The plan of a run, complete, as plain data: it is printed, compared and executed as it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from contract.checkpoint import StartPoint
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.data import DataFolder
from orchestrator.specs.launch_options import RunSettings
from orchestrator.specs.program import Program


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """One node's part of a run."""

    node: str
    address: str
    node_rank: int
    nproc_per_node: int
    first_rank: int
    """Global rank of this node's local rank 0."""
    device: str
    """`cpu` or `cuda`."""
    interface: str
    """Network interface towards the master; empty where it was not asked (`--dry-run`)."""
    folder: str
    """The project's folder on the node; the container sees it as /workspace."""
    container: ContainerSpec


@dataclass(frozen=True, kw_only=True)
class Plan(RunSettings):
    """A whole run."""

    run_id: str
    project: str
    attempt: int
    claim: str = ""
    """Id of the attempt's claim, which its containers carry as a label."""
    resumes: StartPoint | None = None
    """The checkpoint that it resumes from; None: it begins at step 0, or it is a job, which finds it out itself."""
    user: str
    started_at: str
    """ISO 8601 with zone."""
    backend: str
    """`gloo`, or `nccl` where every rank has CUDA: one backend must serve all ranks."""
    master: str
    """Name of the node of rank 0."""
    master_addr: str
    master_port: int
    supervisor_port: int
    """Port of the agents' coordinator on the same node."""
    nnodes: int
    world_size: int
    command: tuple[str, ...]
    """Command of each rank, without torchrun."""
    attempt_options: tuple[str, ...] = ()
    """Options of this attempt's launch that no other field holds, as they were typed."""
    data: tuple[DataFolder, ...] = ()
    """Data that it reads: a node that joins later gets the same."""
    own_code: bool
    code_digest: str = ""
    code_origin: str = ""
    """Its folder on the controller, and the digest of its content: a node that joins later gets the same."""
    one_computer: bool = False
    """True if all nodes are simulated by one computer, whose cores they share: none of them is a slow machine."""
    cluster: str = ""
    """Cluster whose scheduler starts the run as one job; empty: the nodes are machines of the inventory."""
    agent_digest: str = ""
    """Content of the agent that is copied to the nodes; empty: it is in the image."""
    away: tuple[str, ...] = ()
    """Nodes that were given up, and are added back when they return."""
    nodes: tuple[NodePlan, ...]
    """Nodes in order of node_rank."""
    notes: tuple[str, ...] = ()
    """Notes for people on the choices that were made."""

    @cached_property
    def program(self) -> Program:
        """The command, classified."""
        return Program.of(self.command)
