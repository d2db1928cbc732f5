"""Result of an image build on one node."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.errors import OrchError


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Transfer of an image to a node."""

    image_id: str
    size_bytes: int
    moved_bytes: int
    """Compressed bytes sent; 0 if the node had the image or built it."""
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Image of one node after a build, or the error."""

    node: str
    profile: str
    builder: str
    tag: str
    content: str
    cuda: str = ""
    """CUDA of its torch; empty for the CPU."""
    cuda_reason: str = ""
    """Reason for another CUDA than the default; empty for the default."""
    has_torchvision: bool = True
    """False where the build found none that fits torch."""
    delivery: Delivery | None = None
    error: OrchError | None = None
