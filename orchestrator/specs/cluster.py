"""A cluster with a scheduler: where its jobs are submitted, and with which resources. A part of the inventory."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from orchestrator.specs.image import IMAGE_EXPECTED, REFERENCE
from orchestrator.specs.inventory_types import (
    HOST_EXPECTED,
    INTERFACE,
    JUMP,
    NAME,
    NAME_EXPECTED,
    PATH,
    PATH_EXPECTED,
    SIZE_EXPECTED,
    Expected,
    InventoryModel,
    SizeMib,
    no_number,
    real_ipv4,
)

LOCAL = "local"
"""Login of a cluster whose commands run on this computer."""
WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.,-]{0,127}$"
"""Names of the scheduler: no option, no quotes, no white space."""
TIME = r"^(?:[0-9]{1,3}-)?[0-9]{1,5}(?::[0-9]{2}){0,2}$"
OPTION_VALUE = r"^[A-Za-z0-9_*(\[][A-Za-z0-9_.,:=+@*/()\[\]&|-]{0,255}$"
SHARED_PATH = r"^(?:~|)(?:/[A-Za-z0-9._+@-]+)+$"
"""A folder in `#SBATCH` lines: `%` and a backslash have a meaning there, quotes and white space end it."""
PYTHON = r"^python3?$|^(?:/[A-Za-z0-9._+@-]+)+$"
OPTIONS = (
    "begin", "constraint", "core-spec", "distribution", "exclude", "exclusive",
    "gpu-bind", "gpus-per-task", "gres", "gres-flags", "hint", "licenses", "mail-type", "mail-user", "mem-per-cpu",
    "network", "nice", "nodelist", "ntasks-per-core", "priority", "qos", "reservation", "sockets-per-node", "switches",
    "threads-per-core", "tmp", "wckey",
)  # fmt: skip
"""Options of sbatch that an inventory may set. Those that decide where, what and when a job runs are orch's own."""
JOB_PREFIX = "orch:"
"""Beginning of a job's name; the run's id follows."""
_JUMP = re.compile(JUMP)
_TIME_EXPECTED = 'minutes, or a time such as "08:00:00" or "2-00:00:00"'
_WORD_EXPECTED = "letters, digits, '_', '.', ',' or '-', with a letter, a digit or '_' first"


def _login(value: str) -> str:
    if value != LOCAL:
        if not _JUMP.fullmatch(value):
            raise ValueError("local, or [user@]host[:port]")
        try:
            real_ipv4(login_words(value)[1])
        except ValueError as error:
            raise ValueError(f"local, or [user@]host[:port] with {error}") from None
    return value


def login_words(login: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[user@]host[:port]`; None for what it leaves out."""
    user, at, place = login.rpartition("@")
    host, colon, port = place.partition(":")
    return user if at else None, host, int(port) if colon else None


def _as_text(value: object) -> object:
    """Minutes may be written as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _known(value: dict[str, str]) -> dict[str, str]:
    if unknown := sorted(set(value) - set(OPTIONS)):
        raise ValueError(f"options of sbatch that a cluster may set ({', '.join(OPTIONS)}), not {', '.join(unknown)}")
    for name, text in value.items():
        if not re.fullmatch(OPTION_VALUE, text):
            raise ValueError(f"one word without quotes or white space as the value of {name}")
    return value


def _texts(value: object) -> object:
    """Values as words: `nice: 100` is a number in YAML."""
    if not isinstance(value, dict):
        return value
    return {key: _as_text(one) for key, one in value.items()}


class ClusterSpec(InventoryModel):
    """A cluster that starts a run as one job, defaults filled in."""

    name: Annotated[str, AfterValidator(no_number), NAME_EXPECTED] = Field(
        pattern=NAME, description="how `--on` and messages call it"
    )
    project: Annotated[str, NAME_EXPECTED] = Field("orch", pattern=NAME, description="project of the inventory")
    engine: Annotated[Literal["slurm"], Expected("slurm")] = Field("slurm", description="its scheduler")
    login: Annotated[str, AfterValidator(_login), Expected(f"local, or [user@]host[:port], {HOST_EXPECTED}")] = Field(
        description="login node: [user@]host[:port]; local: this computer"
    )
    identity: Annotated[str | None, PATH_EXPECTED] = Field(
        None, pattern=PATH, description="private key file for the login node (default: your ssh-agent and ~/.ssh/id_*)"
    )
    jump: Annotated[str | None, Expected("[user@]host[:port], or a Host of ~/.ssh/config")] = Field(
        None, pattern=JUMP, description="host to go through to the login node"
    )
    workspace: Annotated[str, Expected("a path that begins with / or ~/, of letters, digits and ._+@- alone")] = Field(
        pattern=SHARED_PATH, description="folder that the login node and all compute nodes share"
    )
    partition: Annotated[str | None, Expected(_WORD_EXPECTED)] = Field(
        None, pattern=WORD, description="partition (default: the cluster's)"
    )
    account: Annotated[str | None, Expected(_WORD_EXPECTED)] = Field(
        None, pattern=WORD, description="account to charge (default: yours)"
    )
    time: Annotated[str | None, BeforeValidator(_as_text), Expected(_TIME_EXPECTED)] = Field(
        None,
        pattern=TIME,
        description='time limit of a job: minutes, "08:00:00" or "2-00:00:00" (default: the partition\'s)',
    )
    container: Annotated[Literal["none", "docker", "podman", "pyxis"], Expected("none, docker, podman or pyxis")] = (
        Field("none", description="how ranks run on a compute node; none: as processes")
    )
    image: Annotated[str | None, Expected(IMAGE_EXPECTED)] = Field(
        None, pattern=REFERENCE, description="image of the containers, which the compute nodes have or can pull"
    )
    python: Annotated[str, Expected("python3, or an absolute path of letters, digits and ._+@- alone")] = Field(
        "python3", pattern=PYTHON, description="Python with torch on the compute nodes, for `container: none`"
    )
    cpus: Annotated[int, Expected("a number of CPU cores from 1")] = Field(
        1, ge=1, le=1024, description="CPU cores of each node for the run"
    )
    memory_mib: Annotated[SizeMib | None, SIZE_EXPECTED] = Field(
        None, alias="memory", description="memory of each node for the run, e.g. 32g (default: the partition's)"
    )
    gpus: Annotated[int, Expected("a number of GPUs from 0")] = Field(
        0, ge=0, le=64, description="GPUs of each node for the run, one rank each"
    )
    nproc_per_node: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], Expected("auto or a number from 1")
    ] = Field("auto", description="ranks on each node; auto: one per GPU, otherwise one")
    interface: Annotated[str | None, Expected("the name of a network interface, such as ib0")] = Field(
        None, pattern=INTERFACE, description="network interface of the compute nodes (default: by the nodes' names)"
    )
    options: Annotated[
        dict[str, str],
        BeforeValidator(_texts),
        AfterValidator(_known),
        Expected("a mapping of options of sbatch, such as {qos: normal}"),
    ] = Field(default_factory=dict, description=f"further options of sbatch: {', '.join(OPTIONS)}")

    @property
    def folder(self) -> str:
        """The project's folder on the shared storage; it may begin with `~`."""
        return f"{self.workspace}/{self.project}"
