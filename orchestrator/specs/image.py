"""Result of an image build on one node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.specs.errors import OrchError

REFERENCE = r"^(sha256:[0-9a-f]{64}|[a-z0-9][A-Za-z0-9._/-]*(:[A-Za-z0-9_][A-Za-z0-9._/-]*){0,2})$"
"""An image's name with its registry, or its id: begins with a letter or digit, so never an option of some command."""
IMAGE_REFERENCE = re.compile(REFERENCE)
IMAGE_EXPECTED = "the name of an image, such as lab/mine:1, or its id, sha256:…"


REGISTRY = r"^(https?://)?[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?(/[a-z0-9._-]+)*/?$"
REGISTRY_EXPECTED = "the address of an image registry, such as 192.168.1.5:5000 or registry.example/team"


OUR_PACKAGES = ("contract", "orch_hooks", "trainer")
"""Packages of the agent, which is copied to the nodes for an image that orch has not built."""
TRAINER_NEEDS = ("matplotlib", "numpy", "PIL", "psutil", "safetensors", "tensorboard", "tokenizers", "torch_geometric",
                 "torchmetrics", "transformers", "yaml")  # fmt: skip
"""Modules that the trainer's workloads import, besides torch."""


def whole_reference(reference: str) -> str:
    """Return the name of an image with its tag, as an engine lists it."""
    has_tag = ":" in reference.rpartition("/")[2]
    return reference if has_tag else f"{reference}:latest"


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
