"""What will be done: the plan of a run, complete and plain: printed, compared and carried out as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.specs.secret import Secret


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of the node, seen inside the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """One training container. Its defaults are the least privilege that gloo and NCCL train with."""

    name: str
    image: str
    """Image id, not a tag: what was checked is what runs."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    working_dir: str = "/workspace"
    user: str = "1000:1000"
    """uid:gid of the node's user, so that checkpoints belong to somebody who can delete them."""
    gpus: bool = False
    network: str = "host"
    """A container on the default bridge advertises an address that no other machine reaches (NVIDIA/nccl#929)."""
    cpus: float = 2.0
    memory_mib: int = 4096
    memory_reservation_mib: int = 1024
    shm_mib: int = 1024
    pids_limit: int = 4096
    ulimits: Mapping[str, int] = field(default_factory=dict)
    restart_on_failure: int = 0
    """Docker's `on-failure:N`; 0 is `no`."""
    auto_remove: bool = False
    """Whether the engine removes it when it ends: for a probe, whose controller may be gone by then."""
    stop_timeout_s: int = 75
    """Longer than torchrun's shutdown timeout, else Docker kills a rank while it writes its checkpoint."""
    log_max_size: str = "50m"
    log_max_files: int = 3


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
class Plan:
    """A whole run."""

    run_id: str
    project: str
    attempt: int
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
    """Of the same node: where the nodes' supervisors meet; 0 in a plan of an older version."""
    nnodes: int
    world_size: int
    command: tuple[str, ...]
    """What each rank runs, without torchrun."""
    environment: Mapping[str, str]
    """The user's own variables, which a resumed attempt gets again."""
    mounts: tuple[Mount, ...]
    data_digest: str
    own_code: bool
    code_digest: str = ""
    code_origin: str = ""
    data_origin: str = ""
    """Where code and data lay on the controller, and what they were: a node that comes later gets the same."""
    profile: str = ""
    """The image that was asked for; by each node's device where empty."""
    max_restarts: int = 0
    node_timeout_s: int = 120
    min_nodes: int = 0
    away: tuple[str, ...] = ()
    replicas: int = 1
    """What `LaunchRequest` says of them: whoever watches the run, now or later, finds it here."""
    nodes: tuple[NodePlan, ...]
    """In order of node_rank."""
    notes: tuple[str, ...] = ()
    """What a person should know of the choices made."""
    secrets: tuple[Secret, ...] = ()
    """Handed over as files; here by name alone. A resumed attempt asks for the same."""
