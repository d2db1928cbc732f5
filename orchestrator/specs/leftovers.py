"""Leftovers of orch on a node, and on this computer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class NodeRemains:
    """Files, containers and images of a project on a node."""

    node: str
    folder: str = ""
    """The project's folder; empty: there is none."""
    parts: Mapping[str, int]
    """Bytes by folder in it: runs, data, agent, cache (parts of images too)."""
    others: int = 0
    """Names in it, and in these, that orch has not made."""
    runs: tuple[str, ...] = ()
    """Runs with their checkpoints and all that they wrote."""
    containers: int = 0
    images: Mapping[str, int]
    """Bytes by tag; layers that several images share count for each."""

    @property
    def is_empty(self) -> bool:
        return not (self.parts or self.containers or self.images)


@dataclass(frozen=True, kw_only=True)
class LocalRemains:
    """A folder of orch on this computer."""

    path: Path
    size_bytes: int
