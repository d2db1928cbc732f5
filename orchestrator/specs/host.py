"""Facts that `orch doctor` asks of a machine beyond those of a launch. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PortHolder:
    """Process that listens on a port, as far as the node's user may know."""

    port: int
    pid: int | None = None
    program: str = ""

    def __str__(self) -> str:
        return f"{self.program} (pid {self.pid})" if self.pid else "a program of another user"


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One machine, seen from its host. None or empty stands for what it does not tell: never an error by itself."""

    memory_available_mib: int | None = None
    swap_used_mib: int | None = None
    workspace_writable: bool | None = None
    systemd: bool = False
    docker_program: bool | None = None
    """True if there is a `docker` on the PATH of the node's user."""
    podman: bool = False
    """True if that `docker` is Podman's, or Podman alone is installed."""
    docker_socket: str = ""
    """`open`, `closed` to this user, `absent`, or `elsewhere` where DOCKER_HOST names no socket of this machine."""
    docker_free_mib: int | None = None
    """Free space where the engine keeps images."""
    open_files: int | None = None
    """Limit of file descriptors of the node's user."""
    cpu_flags: frozenset[str] = frozenset()
    """Such as `avx2`, `avx512f`, `amx_tile`, as the kernel names them."""
    wsl: str = ""
    """Kernel string of a WSL2 machine, empty elsewhere."""
    wsl_networking: str = ""
    """`mirrored`, `nat`, …"""
    ntp: str = ""
    """`yes`, `no`: whether the clock is kept by NTP."""
    sleeps: tuple[str, ...] = ()
    """Sleep targets that are not masked."""
    desktop: bool = False
    """True if a login screen runs, and with it the desktop's own habit of suspending an idle machine."""
    idle_action: str = ""
    """Action of logind when the machine is idle."""
    lid_action: str = ""
    """Action of logind when the lid closes; empty where the machine has no lid."""
    on_battery: bool | None = None
    reboot_required: bool | None = None
    throttle_events: int | None = None
    """Thermal throttling since boot, of all cores."""
    holders: tuple[PortHolder, ...] = ()
    """Listeners on the ports that a run would use."""
    xid: tuple[str, ...] = ()
    """Newest NVRM Xid lines of the kernel's log."""


@dataclass(frozen=True, kw_only=True)
class InsideFacts:
    """View of this node from inside a container of the training image, under the limits of a run."""

    torch: str = ""
    nccl: str = ""
    python: str = ""
    cpu_capability: str = ""
    """CPU capability that torch would use: `AVX2`, `AVX512`, …"""
    cpus: float | None = None
    """Limit of the container's cgroup."""
    memory_mib: int | None = None
    shm_mib: int | None = None
    open_files: int | None = None
    user: int | None = None
