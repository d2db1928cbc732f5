"""The GPUs of all nodes, asked on the host and again inside a container. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.facts import EngineFacts, GpuFacts, ImageFacts, SmiFault
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.labels import LABEL_CUDA


@dataclass(frozen=True, kw_only=True)
class SmiAnswer:
    """Answer of nvidia-smi on one side: GPUs, a fault with the line that it wrote, or both where one card is lost."""

    gpus: tuple[GpuFacts, ...] = ()
    fault: SmiFault | None = None
    detail: str = ""
    inforom_corrupted: tuple[str, ...] = ()
    """Bus ids of cards whose infoROM nvidia-smi calls corrupted; they work all the same."""

    @property
    def absent(self) -> bool:
        """No NVIDIA driver here: a CPU node."""
        return self.fault is SmiFault.ABSENT


@dataclass(frozen=True, kw_only=True)
class TorchDevice:
    """One CUDA device as torch sees it."""

    name: str
    uuid: str = ""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class TorchAnswer:
    """Answer of the image's torch inside the container: what a training would see."""

    version: str = ""
    cuda: str = ""
    """CUDA that torch was built with; empty for a CPU build."""
    available: bool = False
    devices: tuple[TorchDevice, ...] = ()
    architectures: tuple[str, ...] = ()
    """`sm_86` is machine code for one card, `compute_90` is what the driver can translate for newer ones."""
    error: str = ""
    """Reason why torch cannot use CUDA, in its own words."""


@dataclass(frozen=True, kw_only=True)
class ContainerAnswer:
    """The container half of a node."""

    image: str
    """Reference that was asked for."""
    found: ImageFacts | None = None
    refused: str = ""
    """Error of the engine that started no container with GPUs."""
    smi: SmiAnswer | None = None
    torch: TorchAnswer | None = None

    @property
    def cuda(self) -> str:
        """CUDA of the image: its label, else torch's answer."""
        label = self.found.labels.get(LABEL_CUDA, "") if self.found else ""
        return label or (self.torch.cuda if self.torch else "")


@dataclass(frozen=True, kw_only=True)
class NodeGpus:
    """One node, as it answered."""

    node: str
    device: str
    """Device from the inventory: `auto`, `cpu` or `cuda`."""
    host: SmiAnswer | None = None
    """None where the node did not answer."""
    engine: EngineFacts | None = None
    container: ContainerAnswer | None = None
    """None where no training container of this node would use a GPU, or it was not asked for."""
    error: str = ""
    """Reason why the node, or its engine, did not answer."""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """All nodes and what is wrong with them."""

    nodes: tuple[NodeGpus, ...]
    findings: tuple[Finding, ...]

    @property
    def unfit(self) -> bool:
        """An error was found: a launch would be refused."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)
