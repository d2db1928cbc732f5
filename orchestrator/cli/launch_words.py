"""What was typed after `orch launch`, not yet understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The options of `orch launch`, as typed."""

    command: tuple[str, ...]
    nodes: str | None
    labels: tuple[str, ...]
    master: str
    profile: str
    mounts: tuple[str, ...]
    environment: tuple[str, ...]
    workdir: Path | None
    data: Path | None
    name: str
    resume: str
    engine: str


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How the command goes about it."""

    dry_run: bool
    forecast: bool
    """Whether it is to measure only, and to leave nothing on the nodes."""
    as_json: bool
    detach: bool
    confirmed: bool
    """Whether nobody need be asked."""
