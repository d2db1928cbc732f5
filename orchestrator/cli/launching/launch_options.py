"""What was typed after `orch launch`, not yet understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_COMMAND = ("gpt2",)
DEFAULT_DATA = Path("Data")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of `orch launch`, as typed; other commands that start containers have some of them."""

    command: tuple[str, ...] = ()
    nodes: str | None = None
    labels: tuple[str, ...] = ()
    master: str = ""
    master_port: int | None = None
    profile: str = ""
    mounts: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    workdir: Path | None = None
    data: Path | None = None
    name: str = ""
    resume: str = ""
    engine: str = ""
    max_restarts: int | None = None
    node_timeout_s: int | None = None
    min_nodes: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, kw_only=True)
class OutputMode:
    """How the command goes about it."""

    dry_run: bool
    forecast: bool
    """Whether it is to measure only, and to leave nothing on the nodes."""
    as_json: bool
    detach: bool
    confirmed: bool
    """Whether nobody need be asked."""
    watch: bool = True
    """Whether a watcher stays with a run that nobody follows."""
    inventory_file: Path | None = None
    engine: str = ""
    """What that watcher is to be told."""
