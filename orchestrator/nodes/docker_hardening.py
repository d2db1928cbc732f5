"""How a training container is confined: the least privilege that gloo and NCCL train with."""

from __future__ import annotations

from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from orchestrator.specs.container import ContainerSpec

MIB = 1024 * 1024
TMPFS = "rw,exec,nosuid,nodev,mode=1777"
"""With exec: torch.compile loads the libraries that it has just written there."""


def host_config(api: Any, spec: ContainerSpec) -> Any:
    """What the engine is asked for; `api` is the SDK's client."""
    restart = {"Name": "on-failure", "MaximumRetryCount": spec.restart_on_failure} if spec.restart_on_failure else None
    return api.create_host_config(
        network_mode=spec.network,
        init=True,  # torchrun as PID 1 ignores SIGTERM while it waits for peers
        read_only=True,
        tmpfs={"/tmp": TMPFS},  # noqa: S108  # a path inside the container
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mounts=[Mount(mount.target, mount.source, type="bind", read_only=mount.read_only) for mount in spec.mounts],
        nano_cpus=int(spec.cpus * 1e9),
        mem_limit=spec.memory_mib * MIB,
        mem_reservation=spec.memory_reservation_mib * MIB,
        shm_size=spec.shm_mib * MIB,
        pids_limit=spec.pids_limit,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in spec.ulimits.items()],
        restart_policy=restart,
        auto_remove=spec.auto_remove,
        log_config=LogConfig(
            type="json-file", config={"max-size": spec.log_max_size, "max-file": str(spec.log_max_files)}
        ),
        device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if spec.gpus else None,
    )
