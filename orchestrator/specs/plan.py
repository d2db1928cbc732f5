"""The plan of a run, complete, as plain data: it is printed, compared and executed as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from contract.checkpoint import StartPoint
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.launch_options import RunSettings

DIGEST_LENGTH = 16
"""Characters of the digest that names a folder of code, data or image parts on a node."""


def data_name(digest: str, parts: Sequence[str], node: str) -> str:
    """Name of the folder with the data on a node: the digest of all data, or one of the node's part of it."""
    if node not in parts:
        return digest
    part = f"{digest} part {parts.index(node)} of {len(parts)}"
    return hashlib.sha256(part.encode()).hexdigest()[:DIGEST_LENGTH]


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
    supervisor_port: int = 0
    """Port of the agents' coordinator on the same node; 0 in a plan of an older version."""
    nnodes: int
    world_size: int
    command: tuple[str, ...]
    """Command of each rank, without torchrun."""
    data_digest: str
    own_code: bool
    code_digest: str = ""
    code_origin: str = ""
    data_origin: str = ""
    """Folders of code and data on the controller, and digest of the code: a node that joins later gets the same."""
    data_parts: tuple[str, ...] = ()
    """Nodes in the order of their parts of the data, some perhaps lost since; empty: every node has all of it."""
    cluster: str = ""
    """Cluster whose scheduler starts the run as one job; empty: the nodes are machines of the inventory."""
    agent_digest: str = ""
    """Content of the agent that is copied to the nodes; empty: it is in the image."""
    away: tuple[str, ...] = ()
    """Nodes that were given up, and are added back when they return."""
    nodes: tuple[NodePlan, ...]
    """In order of node_rank."""
    notes: tuple[str, ...] = ()
    """Notes for people on the choices that were made."""
