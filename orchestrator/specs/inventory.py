"""The machines and how to reach them: what `inventory.yaml` says, validated.

The models are the schema: their field descriptions end up in the JSON Schema that editors read. Text is turned into
them by `inventory_file`, which knows the lines.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.image import IMAGE_EXPECTED, REFERENCE, REGISTRY, REGISTRY_EXPECTED
from orchestrator.specs.inventory_types import (
    FILE,
    HOST_EXPECTED,
    INTERFACE,
    JUMP,
    LONGEST_TEXT,
    NAME,
    NAME_EXPECTED,
    PATH,
    PATH_EXPECTED,
    SIZE_EXPECTED,
    USER,
    Expected,
    Host,
    InventoryModel,
    LabelKey,
    LabelValue,
    Port,
    SizeMib,
    no_number,
)


class Limits(InventoryModel):
    """Resources that a training container may use. A key that is left out is a share of the machine."""

    cpus: Annotated[float | None, Expected("a number of CPU cores above 0, such as 2.0")] = Field(
        None,
        gt=0,
        le=1024,
        allow_inf_nan=False,
        description="CPU cores, Docker's quota (default: all but one; on one or two cores all)",
    )
    memory_reservation_mib: Annotated[SizeMib | None, SIZE_EXPECTED] = Field(
        None, alias="memory_reservation", description="kept free for it, e.g. 1g (default: a quarter of memory)"
    )
    memory_mib: Annotated[SizeMib | None, SIZE_EXPECTED] = Field(
        None, alias="memory", description="most it may use before it is ended, e.g. 4g (default: 80 % of the machine's)"
    )
    shm_mib: Annotated[SizeMib | None, SIZE_EXPECTED] = Field(
        None,
        alias="shm",
        description="shared memory for DataLoader workers and NCCL, e.g. 1g (default: a quarter of memory, at most 8g;"
        " with GPUs half of it, at most 8g for each)",
    )

    @model_validator(mode="after")
    def _reservation_fits(self) -> Limits:
        if self.memory_reservation_mib and self.memory_mib and self.memory_reservation_mib > self.memory_mib:
            raise ValueError(
                f"memory_reservation ({self.memory_reservation_mib}m) to be at most memory ({self.memory_mib}m)"
            )
        return self


FileName = Annotated[str, Field(pattern=FILE, max_length=LONGEST_TEXT)]
_FILE_EXPECTED = Expected("the name of a file of this computer")


class ImageSpec(InventoryModel):
    """Packages of the project, in layers above orch's own image, or another image in its place. Files are relative to
    the inventory's folder."""

    reference: Annotated[str | None, Expected(IMAGE_EXPECTED)] = Field(
        None, pattern=REFERENCE, description="an image of your own with torch, in place of orch's: lab/mine:1"
    )
    registry: Annotated[str | None, Expected(REGISTRY_EXPECTED)] = Field(
        None,
        pattern=REGISTRY,
        description="registry through which `orch build` distributes the image: 192.168.1.5:5000",
    )
    requirements: Annotated[FileName | None, _FILE_EXPECTED] = Field(
        None,
        description="Python packages: a requirements.txt, or a pyproject.toml (a uv.lock next to it fixes versions)",
    )
    apt: Annotated[FileName | None, _FILE_EXPECTED] = Field(
        None, description="Debian packages: a file with one name per line"
    )
    dockerfile: Annotated[FileName | None, _FILE_EXPECTED] = Field(
        None, description="Dockerfile that begins with `ARG BASE` and `FROM ${BASE}`: whatever else the image needs"
    )

    @property
    def files(self) -> dict[str, str]:
        """Files of this computer, by key."""
        return {key: name for key in ("requirements", "apt", "dockerfile") if (name := getattr(self, key))}

    @model_validator(mode="after")
    def _one_origin(self) -> ImageSpec:
        if self.reference and self.files:
            raise ValueError(f"either reference, or what orch adds to its own image ({', '.join(self.files)})")
        return self


def _as_words(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


HookText = Annotated[str, Field(pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", max_length=LONGEST_TEXT)]
HookWord = Annotated[str, Field(pattern=r"^[^\x00]+$", max_length=LONGEST_TEXT)]
HookWords = Annotated[tuple[HookWord, ...], Field(min_length=1), BeforeValidator(_as_words)]
HookCommand = HookText | HookWords
"""A text for /bin/sh, or the words of a command."""
_HOOK_EXPECTED = Expected("a command: a text for /bin/sh, or a list of words such as [notify-send, text]")


class HookSpec(InventoryModel):
    """Commands that run on this computer when something happens to a run; its values are in variables `ORCH_…`."""

    ended: Annotated[HookCommand | None, _HOOK_EXPECTED] = Field(
        None, description="when a run has ended: it has succeeded or failed, or was stopped"
    )
    failed: Annotated[HookCommand | None, _HOOK_EXPECTED] = Field(
        None, description="when a run has failed, besides `ended`"
    )
    node_lost: Annotated[HookCommand | None, _HOOK_EXPECTED] = Field(
        None, description="when a node of a run does not answer any more"
    )


class NodeSpec(InventoryModel):
    """One machine, defaults filled in."""

    name: Annotated[str, AfterValidator(no_number), NAME_EXPECTED] = Field(
        pattern=NAME, description="how commands and messages call it"
    )
    address: Annotated[Host, Expected(HOST_EXPECTED)] = Field(
        description="IPv4 address on the LAN, or a name that resolves to one"
    )
    user: Annotated[str | None, Expected("a user name such as ana")] = Field(
        None, pattern=USER, description="SSH user (default: your own)"
    )
    port: Annotated[Port, Expected("a number from 1 to 65535")] = Field(22, description="SSH port")
    identity: Annotated[str | None, PATH_EXPECTED] = Field(
        None, pattern=PATH, description="private key file (default: your ssh-agent and ~/.ssh/id_*)"
    )
    jump: Annotated[str | None, Expected("[user@]host[:port], or a Host of ~/.ssh/config")] = Field(
        None, pattern=JUMP, description="host to go through: [user@]host[:port], or a Host of ~/.ssh/config"
    )
    connection: Annotated[Literal["ssh", "local"], Expected("ssh or local")] = Field(
        "ssh", description="local: this computer, without SSH"
    )
    engine: Annotated[Literal["docker", "process"], Expected("docker or process")] = Field(
        "docker", description="process: a process, not a container"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Expected("auto, cpu or cuda")] = Field(
        "auto", description="auto: cuda where nvidia-smi shows a GPU"
    )
    nproc_per_node: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], Expected("auto or a number from 1")
    ] = Field("auto", description="ranks here; auto: one per GPU, otherwise one")
    interface: Annotated[str | None, Expected("the name of a network interface, such as enp3s0")] = Field(
        None, pattern=INTERFACE, description="network interface (default: chosen by route)"
    )
    labels: Annotated[dict[LabelKey, LabelValue], Expected("words, such as room: lab")] = Field(
        default_factory=dict, description="your own words, for --nodes"
    )
    limits: Annotated[Limits, Expected("a mapping of cpus, memory_reservation, memory and shm")] = Field(
        default_factory=Limits, description="what the container may use"
    )
    workspace: Annotated[str, PATH_EXPECTED] = Field(
        "~/orch", pattern=PATH, description="folder on the node for data, checkpoints and logs"
    )

    def folder(self, project: str) -> str:
        """The project's folder on the node; it may begin with `~`."""
        return f"{self.workspace}/{project}"


class Inventory(InventoryModel):
    """Content of an inventory file."""

    project: Annotated[str, NAME_EXPECTED] = Field(
        "orch", pattern=NAME, description="names images, containers and the folder on the nodes"
    )
    master_port: Annotated[int, Expected("a number from 1024 to 65535")] = Field(
        12355, ge=1024, le=65535, description="rendezvous port of rank 0; next free one if taken"
    )
    image: Annotated[
        ImageSpec, Expected("a mapping of requirements, apt and dockerfile, or of reference; and registry")
    ] = Field(default_factory=ImageSpec, description="packages that the project adds to the image, or another image")
    hooks: Annotated[HookSpec, Expected("a mapping of ended, failed and node_lost")] = Field(
        default_factory=HookSpec,
        description="commands that run on this computer when a run ends, fails, or loses a node",
    )
    nodes: tuple[NodeSpec, ...] = ()
    clusters: tuple[ClusterSpec, ...] = ()
    """Clusters with a scheduler, for `orch launch --on`."""
    _filename: str = PrivateAttr("inventory.yaml")

    @property
    def filename(self) -> str:
        """Name of its file, for messages."""
        return self._filename

    def of_file(self, filename: str) -> Inventory:
        """The same inventory with the name of its file."""
        named = self.model_copy()
        named._filename = filename
        return named

    @model_validator(mode="after")
    def _names_differ(self) -> Inventory:
        names = [*(node.name for node in self.nodes), *(cluster.name for cluster in self.clusters)]
        if not names:
            raise ValueError("at least one node or cluster")
        if len(set(names)) < len(names):
            raise ValueError("every node and every cluster to have a name of its own")
        return self

    @property
    def holders(self) -> tuple[NodeSpec | ClusterSpec, ...]:
        """Everything that may hold a run: the nodes, and the clusters of this project."""
        return (*self.nodes, *(one.model_copy(update={"project": self.project}) for one in self.clusters))

    def cluster(self, name: str) -> ClusterSpec:
        """The cluster of this name. ConfigError: there is none."""
        for one in self.holders:
            if isinstance(one, ClusterSpec) and one.name == name:
                return one
        names = [one.name for one in self.clusters]
        close = difflib.get_close_matches(name, names, 1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        known = f"clusters there: {', '.join(names)}" if names else "docs/how-to/slurm.md shows how to describe one"
        raise ConfigError(f"no cluster {name!r} in {self.filename}{meant}", hint=known)

    def node(self, name: str) -> NodeSpec:
        """The node of this name; KeyError where there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
