"""A container to be created: image, command, mounts, limits and privileges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024
SHUTDOWN_TIMEOUT_S = 60
"""Seconds that torchrun gives ranks for their last checkpoint after SIGTERM (its default: 30)."""
STOP_TIMEOUT_S = SHUTDOWN_TIMEOUT_S + 15
"""Seconds after which what still runs is killed. Longer, else a rank is killed while it writes its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of the node, seen inside the container."""

    source: str
    target: str
    read_only: bool = False

    @property
    def typed(self) -> str:
        """Value of `--mount`."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


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
    """True if the engine removes it when it ends: for a probe, whose controller may be gone by then."""
    stop_timeout_s: int = STOP_TIMEOUT_S
    log_max_size: str = "50m"
    log_max_files: int = 3

    def create_arguments(self) -> dict[str, Any]:
        """Return the body of the Docker Engine's `POST /containers/create`, without the name.

        The engine gets exactly this, and the line that `--dry-run` prints is made from it.
        """
        restart = {"Name": "on-failure", "MaximumRetryCount": self.restart_on_failure}
        return {
            "Image": self.image,
            "Entrypoint": [""],  # the command is ours; with [] some engines keep the image's
            "Cmd": list(self.command),
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "Labels": dict(self.labels),
            "User": self.user,
            "WorkingDir": self.working_dir,
            "StopTimeout": self.stop_timeout_s,
            "HostConfig": {
                "NetworkMode": self.network,
                "Init": True,  # torchrun as PID 1 ignores SIGTERM while it waits for peers
                "ReadonlyRootfs": True,
                # with exec: torch.compile loads the libraries that it has just written there
                "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108  # a path inside the container
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "Mounts": [
                    {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
                    for mount in self.mounts
                ],
                "NanoCpus": round(self.cpus * 1e9),
                "Memory": self.memory_mib * MIB,
                "MemoryReservation": self.memory_reservation_mib * MIB,
                "ShmSize": self.shm_mib * MIB,
                "PidsLimit": self.pids_limit,
                "Ulimits": [{"Name": name, "Soft": n, "Hard": n} for name, n in self.ulimits.items()],
                "RestartPolicy": restart if self.restart_on_failure else {"Name": "no", "MaximumRetryCount": 0},
                "AutoRemove": self.auto_remove,
                "LogConfig": {
                    "Type": "json-file",
                    "Config": {"max-size": self.log_max_size, "max-file": str(self.log_max_files)},
                },
                "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}] if self.gpus else [],
            },
        }
