"""What `orch setup` knows of a machine, and what it would do there. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orchestrator.specs.facts import EngineFacts


class Rights(str, Enum):
    """How the node's user becomes root."""

    ROOT = "root"
    """It is root."""
    FREE = "free"
    """`sudo` asks it for no password."""
    PASSWORD = "password"  # noqa: S105  # a word of ours, no password
    """`sudo` is there and asks. We never do: a person has to type it on that machine."""
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class SetupFacts:
    """One machine, as far as Docker and the NVIDIA Container Toolkit go."""

    name: str
    user: str
    rights: Rights
    system: str = ""
    """Pretty name of the distribution, for people."""
    distribution: str = ""
    """`debian`, `ubuntu`, … as os-release says."""
    like: tuple[str, ...] = ()
    """The distributions that it descends from."""
    version: str = ""
    """Such as `12` or `24.04`; empty for Debian's testing and unstable."""
    systemd: bool = False
    apparmor: bool = False
    """Whether the kernel enforces AppArmor: the engine then needs its programs."""
    packages: frozenset[str] = frozenset()
    """Of those that matter here, the installed ones."""
    programs: frozenset[str] = frozenset()
    """Of those that matter here, the ones found, `/usr/sbin` included."""
    podman: bool = False
    """Whether `docker` is Podman under that name."""
    daemon: bool = False
    """Whether a dockerd runs."""
    enabled: bool = False
    """Whether it starts with the machine, as far as systemd knows."""
    in_group: bool = False
    """Whether the user is a member of the group docker."""
    runtimes: tuple[str, ...] = ()
    """Of the engine, as far as it could be asked."""
    runs: tuple[str, ...] = ()
    """Runs of orch that go on there."""
    containers: int = 0
    """All that run there."""
    nvidia_driver: str = ""
    source: str = ""
    """What NVIDIA's package source file holds."""
    source_keys: tuple[str, ...] = ()
    """Fingerprints of the keys in its keyring."""
    proxies: tuple[str, ...] = ()
    """Names of the proxy variables that its user's environment has; never their values, which may hold passwords."""
    wants_gpus: bool = True
    """False where the inventory says `device: cpu`."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command, and why."""

    why: str
    argv: tuple[str, ...]
    stdin: str = ""
    done: bool = False
    known_by: str = ""
    """How it is known whether it is done already, in words."""
    only_key: str = ""
    """For the command that shows a downloaded key: the one fingerprint that it must have."""
    always: bool = False
    """Whether it is carried out even where a step before it failed: it cleans up."""
    timeout_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class SetupPlan:
    """All that there is to do on one node, in order; what is done already is told too."""

    node: str
    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()
    """What somebody should know before agreeing."""
    refused: str = ""
    """Why nothing may be done there; empty where something may."""
    hint: str = ""

    @property
    def to_do(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.done)


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """What became of a node."""

    node: str
    done: tuple[str, ...] = ()
    """Why of every step that was carried out."""
    engine: EngineFacts | None = None
    """The engine's own answer afterwards, to a new login."""
    error: str = ""
    hint: str = ""
