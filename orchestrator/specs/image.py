"""Where an image is: one node's outcome of a build."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.errors import OrchError


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How an image came to a node."""

    image_id: str
    size_bytes: int
    moved_bytes: int
    """Over the connection, compressed; 0 where the node had the image, or built it."""
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One node's image at the end, or the reason why it has none."""

    node: str
    profile: str
    builder: str
    tag: str
    content: str
    delivery: Delivery | None = None
    error: OrchError | None = None
