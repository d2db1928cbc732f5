"""Facts about the machines: asked once, in parallel, before planning. Plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class SmiFault(StrEnum):
    """Reason why nvidia-smi named no GPU."""

    ABSENT = "absent"
    """No nvidia-smi: a machine without NVIDIA's driver, which is no fault by itself."""
    NO_DEVICE = "no_device"
    NO_DRIVER = "no_driver"
    """The program is there, but the kernel module is not loaded."""
    MISMATCH = "mismatch"
    """The kernel module is older or newer than the library, as after an upgrade without a reboot."""
    LOST = "lost"
    """A card fell off the bus."""
    NO_PERMISSION = "no_permission"
    BLOCKED = "blocked"
    """Windows does not let WSL use the GPU."""
    UNREADABLE = "unreadable"
    """Success with output that is not understood."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU as nvidia-smi reports it. `None` stands for `[N/A]`: a card without that sensor, never an error."""

    index: int
    uuid: str
    name: str
    driver_version: str
    cuda_version: str = ""
    """Newest CUDA that the driver serves; empty where nvidia-smi was not asked or does not say."""
    compute_capability: tuple[int, int] | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    mig_enabled: bool | None = None
    power_draw_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    """Limit that the card was delivered with."""
    persistence: bool | None = None
    """True if the driver stays loaded while no process uses the card."""
    throttle_reasons: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    fault: str = ""
    """Text that nvidia-smi wrote in place of readings, such as `GPU is lost`; empty for a healthy card."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    used_memory_mib: int | None
    kind: str = ""
    """nvidia-smi's letters: `C` computes, `G` draws a desktop, `C+G` does both."""


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """An image as one engine has it.

    `layers` are diff ids (sha256 of the uncompressed layer), base first: engines that list the same ids hold the same
    bytes.
    """

    id: str
    tags: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    architecture: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageContents:
    """Contents of an image that orch has not built, as a container of it says."""

    reference: str
    """The name by which the run asks for it."""
    device: str
    """Device that the node's ranks would use."""
    python: str = ""
    torch: str = ""
    """Its version; empty where it cannot be imported."""
    torch_error: str = ""
    """Reason why it cannot be imported."""
    cuda: str = ""
    """CUDA that its torch was built with; empty for the CPU."""
    torchrun: bool = False
    """True if it has `torch.distributed.run`."""
    backends: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """Requested modules that the image has."""
    missing: tuple[str, ...] = ()
    """Modules that the run needs and the image does not have."""
    error: str = ""
    """Reason why no container of it answered."""


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """A node's container engine."""

    kind: str
    """`docker`, `podman` where that answers for it, or `process` where each node is a process of this computer."""
    version: str
    """Version of the torch that the nodes run where they are processes; empty where there is none."""
    id: str
    """The engine's own id: two node names with one id are one machine."""
    architecture: str
    operating_system: str = ""
    runtimes: tuple[str, ...] = ()
    storage_driver: str = ""
    cgroup_version: str = ""
    rootless: bool = False
    cpus: int = 0
    memory_mib: int = 0

    @property
    def docker_desktop(self) -> bool:
        """Docker Desktop's host network is its own virtual machine's: no other node reaches a rank in it."""
        return "Docker Desktop" in self.operating_system


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way from one node to one peer: `ip route get PEER`."""

    interface: str
    source: str
    """The IPv4 address that the node shows to this peer."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One machine, as it answered."""

    name: str
    address: str
    """IPv4 address that the ranks use; host names are resolved once, on the controller."""
    hostname: str = ""
    machine_id: str = ""
    boot_id: str = ""
    """Id of the running kernel: simulated machines of one computer share it."""
    user: str = ""
    uid: int = 1000
    gid: int = 1000
    home: str = ""
    kernel: str = ""
    architecture: str = ""
    cpus: int = 0
    memory_mib: int = 0
    disk_free_mib: int | None = None
    """Free space where the workspace lies (its nearest existing parent)."""
    clock_offset_s: float = 0.0
    """This node's clock minus the controller's, half a round trip accounted for."""
    ports_in_use: frozenset[int] = frozenset()
    """TCP ports with a listener, of any address."""
    routes: Mapping[str, Route] = field(default_factory=dict)
    """Routes by peer address. Empty for a node that was not asked about peers."""
    nvidia_driver: str = ""
    """Version of the kernel driver, empty where there is none."""
    gpus: tuple[GpuFacts, ...] = ()
    gpu_fault: SmiFault | None = None
    """Reason why nvidia-smi, which is installed, named no GPU."""
    gpu_detail: str = ""
    """The line that it wrote then."""
    engine: EngineFacts | None = None
    image: ImageFacts | None = None
    """The image that a run would use, as this node's engine has it."""
    reference: str = ""
    """Name of that image where orch has not built it."""
    contents: ImageContents | None = None
    """Its contents in that case."""
    has_data: bool | None = None
    """True if the project's folder `Data` holds something there: what a run reads to which no data is brought."""
    newest_checkpoint: int | None = None
    """Step of the newest checkpoint of the run to be resumed; None where this node holds none."""
    assumed: bool = False
    """True where the machine was not asked, so that all above is the inventory's word (`--dry-run`)."""
