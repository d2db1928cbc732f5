"""A lab's description, node names and clock, and the folder that keeps it while it is up."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_state_path

from orchestrator.lab.network import UNSHAPED
from orchestrator.nodes.state_files import private_folder, replace_file
from orchestrator.specs.errors import ConfigError, ConflictError, UsageError

USER = "orch"
"""User on every node: not root, member of the group docker."""

EngineKind = Literal["docker", "process", "slurm"]
LOGIN = "login"
"""Machine of a Slurm cluster on which jobs are submitted, beside its compute nodes."""


@dataclass(frozen=True, kw_only=True)
class LabNode:
    """One simulated machine."""

    name: str
    address: str
    link: str = UNSHAPED
    """Speed of its network link, as the user wrote it."""
    has_engine: bool = True
    """True if a Docker Engine runs on it."""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A whole LAN in a box, or a cluster."""

    name: str
    engine: EngineKind
    nodes: tuple[LabNode, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def compute(self) -> tuple[LabNode, ...]:
        """Machines that train: all but the login node of a cluster."""
        return tuple(node for node in self.nodes if self.engine != "slurm" or node.name != LOGIN)


@dataclass(frozen=True)
class LabClock:
    """Time, as tests may replace it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = LabClock()


def lab_folder() -> Path:
    """Inventory, keys and known hosts of the one lab that this user may have up."""
    return user_state_path("orch") / "lab"


def inventory_file() -> Path:
    return lab_folder() / "inventory.yaml"


def identity_file() -> Path:
    return lab_folder() / "id_ed25519"


def known_hosts_file() -> Path:
    return lab_folder() / "known_hosts"


def load_lab() -> Lab | None:
    """The lab of this folder; None where there is none."""
    try:
        fields = json.loads(_lab_file().read_text())
        return Lab(**{**fields, "nodes": tuple(LabNode(**node) for node in fields["nodes"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{_lab_file()} cannot be read: {error}", hint="orch lab down") from error


def require_lab() -> Lab:
    """The lab that is up."""
    lab = load_lab()
    if lab is None:
        raise ConfigError("no lab is up", hint="orch lab up --nodes 5")
    return lab


def save_lab(lab: Lab) -> None:
    replace_file(_lab_file(), json.dumps(asdict(lab), indent=2) + "\n")


def forget_lab() -> bool:
    """Remove the folder; False where there was none."""
    known = lab_folder().exists()
    for place, _, _ in os.walk(lab_folder()):
        Path(place).chmod(0o700)  # data of runs is read-only
    shutil.rmtree(lab_folder(), ignore_errors=not known)
    return known


@contextmanager
def exclusive() -> Iterator[None]:
    """Two commands must not build and take down the same lab at once."""
    parent = private_folder(lab_folder().parent)
    handle = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConflictError("another `orch lab` command is running", hint="wait until it ends") from None
    try:
        yield
    finally:
        os.close(handle)


def _lab_file() -> Path:
    return lab_folder() / "lab.json"


GREEK = ("alpha", "beta", "gamma", "delta", "epsilon")
MAX_NODES = 64


def node_names(count: int) -> tuple[str, ...]:
    """`alpha` to `epsilon`, then `node06` and on."""
    if not 1 <= count <= MAX_NODES:
        raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {count}")
    return (*GREEK[:count], *(f"node{number:02}" for number in range(len(GREEK) + 1, count + 1)))


def find_node(wanted: str, names: Sequence[str]) -> str:
    """The node of this name, or of this number in the order of the inventory, from 1."""
    if wanted in names:
        return wanted
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return names[int(wanted) - 1]
    raise UsageError(f"the lab has no node '{wanted}'", hint=f"name one of {', '.join(names)}, or 1 to {len(names)}")
