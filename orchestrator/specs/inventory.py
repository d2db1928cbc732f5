"""The machines and how to reach them: what `inventory.yaml` says, validated.

The models are the schema: their field descriptions end up in the JSON Schema that editors read. Text is turned into
them by `inventory_file`, which knows the lines.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
HOST = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?$"
"""An IPv4 address or a host name: begins with a letter or digit, so never an option of some command."""
USER = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"
INTERFACE = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}$"
PATH = r"^(~|/)[^\x00-\x1f:]*$"
"""Absolute or under the home of the node's user; no colon, which separates the parts of a mount."""

_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(m|mb|mib|g|gb|gib)$", re.IGNORECASE)


def parse_size_mib(value: object) -> object:
    """`512m`, `4g` (powers of 1024) into MiB; anything else is left for pydantic to refuse."""
    if isinstance(value, str) and (match := _SIZE.match(value.strip())):
        factor = 1024 if match.group(2).lower().startswith("g") else 1
        return int(float(match.group(1)) * factor)
    raise ValueError("a size such as 512m or 4g")


SizeMib = Annotated[int, BeforeValidator(parse_size_mib, json_schema_input_type=str), Field(gt=0)]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)


class Limits(_Spec):
    """What a training container may use of its machine."""

    cpus: float = Field(2.0, gt=0, le=1024, description="CPU cores (Docker's quota)")
    memory_reservation_mib: SizeMib = Field(1024, alias="memory_reservation", description="kept free for it, e.g. 1g")
    memory_mib: SizeMib = Field(4096, alias="memory", description="most it may use before it is ended, e.g. 4g")
    shm_mib: SizeMib = Field(1024, alias="shm", description="shared memory for DataLoader workers and NCCL, e.g. 1g")


class NodeSpec(_Spec):
    """One machine, defaults filled in."""

    name: str = Field(pattern=NAME, description="how commands and messages call it")
    address: str = Field(pattern=HOST, description="IPv4 address on the LAN, or a name that resolves to one")
    user: str | None = Field(None, pattern=USER, description="SSH user; yours where not given")
    port: int = Field(22, ge=1, le=65535, description="SSH port")
    identity: str | None = Field(None, pattern=PATH, description="private key file; else your agent and ~/.ssh/id_*")
    jump: str | None = Field(None, description="host to go through: [user@]host[:port], or a Host of ~/.ssh/config")
    connection: Literal["ssh", "local"] = Field("ssh", description="local: this very computer, without SSH")
    engine: Literal["docker", "process"] = Field("docker", description="process: a process, not a container")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where nvidia-smi shows a GPU")
    nproc_per_node: int | Literal["auto"] = Field("auto", description="ranks here; auto: one per GPU, else one")
    interface: str | None = Field(None, pattern=INTERFACE, description="network interface; else the route decides")
    labels: dict[str, str] = Field(default_factory=dict, description="your own words, for --label")
    limits: Limits = Field(default_factory=Limits, description="what the container may use")
    workspace: str = Field("~/orch", pattern=PATH, description="folder on the node for data, checkpoints and logs")


class Inventory(_Spec):
    """The whole file."""

    project: str = Field("orch", pattern=NAME, description="names images, containers and the folder on the nodes")
    master_port: int = Field(12355, ge=1024, le=65535, description="rendezvous port of rank 0; next free one if taken")
    nodes: tuple[NodeSpec, ...] = Field(min_length=1)

    def node(self, name: str) -> NodeSpec:
        """The node of this name; KeyError where there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
