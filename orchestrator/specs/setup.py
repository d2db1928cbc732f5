"""Facts, plan and result of `orch setup` for a machine. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.specs.facts import EngineFacts

NVIDIA_SOURCE = "https://nvidia.github.io/libnvidia-container"
"""Package source of NVIDIA's installation guide (docs.nvidia.com, Container Toolkit, "With apt")."""


class Rights(StrEnum):
    """Way in which the node's user becomes root."""

    ROOT = "root"
    """The user is root."""
    FREE = "free"
    """`sudo` asks it for no password."""
    PASSWORD = "password"  # noqa: S105  # a state, not a password
    """`sudo` asks for a password."""
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
    """True if the kernel enforces AppArmor: the engine then needs its programs."""
    packages: frozenset[str] = frozenset()
    """Relevant packages that are installed."""
    programs: frozenset[str] = frozenset()
    """Relevant programs that were found, `/usr/sbin` included."""
    podman: bool = False
    """True if `docker` is Podman under that name."""
    daemon: bool = False
    """True if a dockerd runs."""
    enabled: bool = False
    """True if it starts with the machine, as far as systemd knows."""
    in_group: bool = False
    """True if the user is a member of the group docker."""
    runtimes: tuple[str, ...] = ()
    """Runtimes of the engine, if it answered."""
    runs: tuple[str, ...] = ()
    """Runs of orch that are active there."""
    containers: int = 0
    """All that run there."""
    nvidia_driver: str = ""
    source: str = ""
    """Content of NVIDIA's package source file."""
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
    """Description of the check whether it is already done."""
    only_key: str = ""
    """Required fingerprint, for the command that shows a downloaded key."""
    always: bool = False
    """True if it is carried out even where a step before it failed: it cleans up."""
    timeout_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class SetupPlan:
    """Steps for one node, in order, including those already done."""

    node: str
    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings to show before asking for consent."""
    refused: str = ""
    """Reason not to change the node; empty if it can be set up."""
    hint: str = ""
    new_source: str = ""
    """Address of a package source that the steps add to the machine's own."""

    @property
    def to_do(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.done)


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """Result of the setup of a node."""

    node: str
    done: tuple[str, ...] = ()
    """`why` of every completed step."""
    engine: EngineFacts | None = None
    """The engine's own answer afterwards, to a new login."""
    error: str = ""
    hint: str = ""
