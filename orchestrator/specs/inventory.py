"""The machines and how to reach them: what `inventory.yaml` says, validated.

The models are the schema: their field descriptions end up in the JSON Schema that editors read. Text is turned into
them by `inventory_file`, which knows the lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from orchestrator.specs.image import IMAGE_EXPECTED, REFERENCE, REGISTRY, REGISTRY_EXPECTED

NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
HOST = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?$"
"""An IPv4 address or a host name: begins with a letter or digit, so never an option of some command."""
USER = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"
JUMP = r"^([A-Za-z_][A-Za-z0-9_.-]{0,31}@)?[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?(:[1-9][0-9]{0,4})?$"
INTERFACE = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}$"
PATH = r"""^~?/[^\x00-\x1f\x7f:;|&$<>`"'\\*?!(){}\[\]#]*$"""
"""Absolute or under the home of the node's user; no colon, which separates the parts of a mount, and nothing a shell
would read as more than a path."""
SIZE = r"^([0-9]{1,7}(?:\.[0-9]{1,3})?) ?([mM]|[gG])([iI]?[bB])?$"
FILE = r"^[^\x00-\x1f\x7f]{1,4096}$"
"""A file of this computer: it reaches no shell and no node."""
LABEL_KEY = r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,62}$"
LABEL_VALUE = r"^[^\x00-\x1f\x7f]{0,253}$"

_SIZE = re.compile(SIZE)
_HOST_EXPECTED = "a host name or an IPv4 address"


@dataclass(frozen=True)
class Expected:
    """Description of valid values for messages: `expected …`."""

    text: str


def parse_size_mib(value: object) -> object:
    """`512m`, `4g` (powers of 1024) into MiB."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        factor = 1024 if match.group(2) in "gG" else 1
        return int(float(match.group(1)) * factor)
    raise ValueError("a size such as 512m or 4g")


def _ipv4_only(value: object) -> object:
    if isinstance(value, str) and ":" in value:
        try:
            IPv6Address(value.strip("[]"))
        except AddressValueError:
            return value
        raise ValueError(f"{_HOST_EXPECTED}; IPv6 is not supported for now, IPv4 only")
    return value


def _real_ipv4(value: str) -> str:
    if not re.fullmatch(r"[0-9.]+", value):
        return value
    try:
        address = IPv4Address(value)
    except AddressValueError as error:
        raise ValueError(f"{_HOST_EXPECTED}: four numbers from 0 to 255") from error
    if address.is_unspecified or address.is_multicast or address == IPv4Address("255.255.255.255"):
        raise ValueError(f"{_HOST_EXPECTED} of one machine")
    return value


def _no_number(value: str) -> str:
    if value.isdecimal():
        raise ValueError("a name that is not only digits, because --nodes 5 means five nodes")
    return value


_NAME_EXPECTED = Expected("lower-case letters, digits, '-', '.' or '_', at most 63, a letter or digit at both ends")
_SIZE_EXPECTED = Expected("a size such as 512m or 4g")
_PATH_EXPECTED = Expected("a path that begins with / or ~/, without colons and shell characters")

SizeMib = Annotated[
    int,
    BeforeValidator(parse_size_mib),
    Field(gt=0),
    WithJsonSchema({"type": "string", "pattern": SIZE}),
]
Host = Annotated[str, BeforeValidator(_ipv4_only), Field(pattern=HOST), AfterValidator(_real_ipv4)]
Port = Annotated[int, Field(ge=1, le=65535)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=False)


class Limits(_Spec):
    """Resources that a training container may use. A key that is left out is a share of the machine."""

    cpus: Annotated[float | None, Expected("a number of CPU cores above 0, such as 2.0")] = Field(
        None,
        gt=0,
        le=1024,
        allow_inf_nan=False,
        description="CPU cores, Docker's quota (default: all but one; on one or two cores all)",
    )
    memory_reservation_mib: Annotated[SizeMib | None, _SIZE_EXPECTED] = Field(
        None, alias="memory_reservation", description="kept free for it, e.g. 1g (default: a quarter of memory)"
    )
    memory_mib: Annotated[SizeMib | None, _SIZE_EXPECTED] = Field(
        None, alias="memory", description="most it may use before it is ended, e.g. 4g (default: 80 % of the machine's)"
    )
    shm_mib: Annotated[SizeMib | None, _SIZE_EXPECTED] = Field(
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


FileName = Annotated[str, Field(pattern=FILE)]
_FILE_EXPECTED = Expected("the name of a file of this computer")


class ImageSpec(_Spec):
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


HookText = Annotated[str, Field(pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", max_length=4096)]
HookWords = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^\x00]{1,4096}$")], ...], Field(min_length=1), BeforeValidator(_as_words)
]
HookCommand = HookText | HookWords
"""A text for /bin/sh, or the words of a command."""
_HOOK_EXPECTED = Expected("a command: a text for /bin/sh, or a list of words such as [notify-send, text]")


class HookSpec(_Spec):
    """Commands that run on this computer when something happens to a run; its values are in variables `ORCH_…`."""

    ended: Annotated[HookCommand | None, _HOOK_EXPECTED] = Field(
        None, description="when a run has ended: it is done, failed, or was stopped"
    )
    failed: Annotated[HookCommand | None, _HOOK_EXPECTED] = Field(
        None, description="when a run has failed, besides `ended`"
    )
    node_lost: Annotated[HookCommand | None, _HOOK_EXPECTED] = Field(
        None, description="when a node of a run does not answer any more"
    )


class NodeSpec(_Spec):
    """One machine, defaults filled in."""

    name: Annotated[str, AfterValidator(_no_number), _NAME_EXPECTED] = Field(
        pattern=NAME, description="how commands and messages call it"
    )
    address: Annotated[Host, Expected(_HOST_EXPECTED)] = Field(
        description="IPv4 address on the LAN, or a name that resolves to one"
    )
    user: Annotated[str | None, Expected("a user name such as ana")] = Field(
        None, pattern=USER, description="SSH user (default: your own)"
    )
    port: Annotated[Port, Expected("a number from 1 to 65535")] = Field(22, description="SSH port")
    identity: Annotated[str | None, _PATH_EXPECTED] = Field(
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
        default_factory=dict, description="your own words, for --nodes and --label"
    )
    limits: Annotated[Limits, Expected("a mapping of cpus, memory_reservation, memory and shm")] = Field(
        default_factory=Limits, description="what the container may use"
    )
    workspace: Annotated[str, _PATH_EXPECTED] = Field(
        "~/orch", pattern=PATH, description="folder on the node for data, checkpoints and logs"
    )

    def folder(self, project: str) -> str:
        """The project's folder on the node; it may begin with `~`."""
        return f"{self.workspace}/{project}"


class Inventory(_Spec):
    """The whole file."""

    project: Annotated[str, _NAME_EXPECTED] = Field(
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
    nodes: tuple[NodeSpec, ...] = Field(min_length=1)
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
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError("every node to have a name of its own")
        return self

    def node(self, name: str) -> NodeSpec:
        """The node of this name; KeyError where there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
