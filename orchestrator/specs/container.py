"""A container to be created: image, command, mounts, limits and privileges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
