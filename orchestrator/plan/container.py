"""One node's training container: command, environment, labels, mounts, limits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from contract import environment
from contract.checkpoint import StartPoint, encode_start
from orchestrator.plan.command import (
    COMPILED,
    CONTAINER_WORKSPACE,
    HF_HOME,
    TORCH_HOME,
    TorchrunPlace,
    script_environment,
    torchrun_command,
)
from orchestrator.specs import labels
from orchestrator.specs.container import SHUTDOWN_TIMEOUT_S, STOP_TIMEOUT_S, ContainerSpec, Mount
from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.data import DataFolder
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import NodePlan
from orchestrator.specs.request import LaunchRequest, RunIdentity
from orchestrator.specs.secret import Secret

SECRETS_INSIDE = "/run/secrets"
AGENT_INSIDE = "/opt/orch"
"""Folder of the agent in orch's image; in another, where a copy of it is mounted."""
IMAGE_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/tmp",  # noqa: S108  # a path inside the container
    "USER": "orch",
    "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108
    "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108
    "OMP_WAIT_POLICY": "PASSIVE",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
"""Variables that orch's own image sets (images/Dockerfile) for a read-only root, any user and shared cores."""
LOCK_NAME = "orch-run"
"""Name of the container, of which a machine has at most one: it is the lock that prevents a second run."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Place of one node in a run: its ranks, and how they meet the others."""

    node_rank: int
    first_rank: int
    nproc_per_node: int
    world_size: int
    device: str
    interface: str
    names: tuple[str, ...]
    """Names of all nodes, in order of node_rank."""
    master_addr: str
    master_port: int
    supervisor_port: int
    backend: str
    has_cpu_ranks: bool
    """True if a rank of the run, on whichever node, trains on a CPU."""


def plan_node(
    request: LaunchRequest, identity: RunIdentity, node: NodeSpec, facts: NodeFacts, place: Placement
) -> NodePlan:
    """This node's part of the run."""
    folder = project_folder(node, facts, request.project)
    secrets = secrets_folder(facts.uid, identity, node.name)
    if request.cluster:  # all nodes share the run's folder, and the job removes them
        secrets = f"{folder}/runs/{identity.run_id}/secrets"
    limits = limits_of(node, facts)
    agent = Mount(source=f"{folder}/agent/{request.agent_digest}", target=AGENT_INSIDE, read_only=True)
    container = ContainerSpec(
        name=LOCK_NAME,
        image=facts.image.id if facts.image else request.image_tag(place.device),
        command=_command(request, identity, place),
        environment=_environment(request, identity, place, node=node.name, cpus=limits.cpus),
        labels={
            **_labels(request, identity, node, place),
            **({labels.LABEL_SECRETS: secrets} if request.secrets and not request.cluster else {}),
        },
        mounts=(
            Mount(source=folder, target=CONTAINER_WORKSPACE),
            *_data_mounts(request.data, folder, node.name),
            *([agent] if request.agent_digest else []),
            *secret_mounts(request.secrets, secrets),
            *request.mounts,
        ),
        working_dir=f"{CONTAINER_WORKSPACE}/runs/{identity.run_id}/code" if request.own_code else CONTAINER_WORKSPACE,
        user=f"{facts.uid}:{facts.gid}",
        gpus=place.device == "cuda",
        cpus=limits.cpus,
        memory_mib=limits.memory_mib,
        memory_reservation_mib=limits.memory_reservation_mib,
        shm_mib=limits.shm_mib,
        ulimits={"memlock": -1, "stack": 67108864} if place.device == "cuda" else {},
        restart_on_failure=request.max_restarts,
        stop_timeout_s=STOP_TIMEOUT_S,
    )
    return NodePlan(
        node=node.name,
        address=facts.address,
        node_rank=place.node_rank,
        nproc_per_node=place.nproc_per_node,
        first_rank=place.first_rank,
        device=place.device,
        interface=place.interface,
        folder=folder,
        container=container,
    )


def _command(request: LaunchRequest, identity: RunIdentity, place: Placement) -> tuple[str, ...]:
    """Return the command of the agent, which starts and restarts torchrun (docs/adr/0022), or a script that does."""
    is_script = request.program.is_shell
    started = request.command if is_script else torchrun_command(request.program, _torchrun_place(identity, place))
    # -P: the working folder is the user's, who may have a `trainer`, too
    start = (
        ("python3", "-c", start_of_agent(AGENT_INSIDE))
        if request.agent_digest
        else ("python", "-P", "-m", "trainer.agent")
    )
    return (
        *start,
        "--nodes", ",".join(place.names),
        "--node-rank", str(place.node_rank),
        "--first-rank", str(place.first_rank),
        "--address", place.master_addr,
        "--port", str(place.supervisor_port),
        "--restarts", str(request.max_restarts),
        "--absence", str(request.absence_s),
        *(("--hang", str(request.hang_timeout_s)) if request.hang_timeout_s else ()),
        *(("--independent",) if request.independent else ()),
        *(("--no-warm-start",) if request.no_warm_start else ()),
        *(("--sync-outputs", request.sync_outputs) if request.sync_outputs != "results" else ()),
        *(("--script-ranks", str(place.nproc_per_node)) if is_script else ()),
        "--", *started,
    )  # fmt: skip


def start_of_agent(folder: str) -> str:
    """Program for `python -c` that starts the agent of this folder: the same as -P, which Python has from 3.11 on, with
    that folder before the image's packages."""
    return (
        f"import runpy, sys; sys.path = [{folder!r}, *filter(None, sys.path)];"
        " runpy.run_module('trainer.agent', run_name='__main__', alter_sys=True)"
    )


def _torchrun_place(identity: RunIdentity, place: Placement) -> TorchrunPlace:
    return TorchrunPlace(
        nnodes=len(place.names),
        node_rank=place.node_rank,
        nproc_per_node=place.nproc_per_node,
        world_size=place.world_size,
        master_addr=place.master_addr,
        master_port=place.master_port,
        run=f"{identity.run_id}.{identity.attempt}",
    )


def project_folder(node: NodeSpec, facts: NodeFacts, project: str) -> str:
    """The project's folder on the node. `~` remains where the home of its user is unknown."""
    workspace = node.workspace
    if workspace.startswith("~") and facts.home:
        workspace = facts.home + workspace[1:]
    return str(PurePosixPath(workspace) / project)


def _environment(
    request: LaunchRequest, identity: RunIdentity, place: Placement, *, node: str, cpus: float
) -> dict[str, str]:
    # The ranks' folder is not to be searched before the image for the trainer; a script of the user's needs its own.
    is_own = request.program.is_own
    ours = {environment.RESUME: "", **_of_libraries(place)} if is_own else {"PYTHONSAFEPATH": "1"}
    script = script_environment(_torchrun_place(identity, place)) if request.program.is_shell else {}
    interface = (
        {"GLOO_SOCKET_IFNAME": place.interface, "NCCL_SOCKET_IFNAME": place.interface} if place.interface else {}
    )
    return {
        **(IMAGE_ENVIRONMENT if request.agent_digest else {}),
        # For scripts that read them; torchrun's own flags decide.
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "NNODES": str(len(place.names)),
        "NODE_RANK": str(place.node_rank),
        "GPUS_PER_NODE": str(place.nproc_per_node),
        # more threads than cores cost 14 % (4 on 2), and a quota does not show in the core count
        "OMP_NUM_THREADS": str(max(1, int(cpus) // place.nproc_per_node)),
        environment.SHUTDOWN_TIMEOUT_S: str(SHUTDOWN_TIMEOUT_S),
        **interface,
        **dict(_data_variables(request.data, node, own_script=is_own)),
        **ours,
        **script,
        # on the node's disk and for all its runs: a model of the hub in /tmp would count against the memory's limit
        "HF_HOME": HF_HOME,
        "TORCH_HOME": TORCH_HOME,
        # kernels of torch.compile: a run that starts again need not compile again
        "TORCHINDUCTOR_CACHE_DIR": COMPILED,
        "TRITON_CACHE_DIR": f"{COMPILED}/triton",
        environment.RUN_ID: identity.run_id,
        environment.ATTEMPT: str(identity.attempt),
        environment.NODE: node,
        environment.NODE_RANK: str(place.node_rank),
        environment.RUN_DIR: f"{CONTAINER_WORKSPACE}/runs/{identity.run_id}",
        environment.BACKEND: place.backend,
        environment.PG_TIMEOUT_S: str(request.process_group_timeout_s),
        environment.EVENTS: "1",
        **({environment.RESUME_FROM: encode_start(identity.resumes or StartPoint())} if identity.claim else {}),
        **secret_environment(request.secrets),
        **request.environment,
    }


def _of_libraries(place: Placement) -> dict[str, str]:
    """Variables without which libraries ignore torchrun's: each rank would train a model of its own.

    accelerate, and the Trainer of transformers with it, form no process group on CPUs; Lightning takes itself for one
    node, unless its Trainer gets other arguments.
    """
    nodes, ranks = str(len(place.names)), str(place.nproc_per_node)
    on_cpu = {"ACCELERATE_USE_CPU": "true"} if place.has_cpu_ranks else {}
    return {**on_cpu, "PL_TRAINER_NUM_NODES": nodes, "PL_TRAINER_DEVICES": ranks}


def _data_mounts(data: Sequence[DataFolder], folder: str, node: str) -> Iterator[Mount]:
    """Mounts of data onto themselves, which makes them read-only, and onto absolute paths that a script asks for."""
    shown = dict[str, str]()
    for one in data:
        held = f"data/{one.held_as(node)}"
        shown |= {place: held for place in (f"{CONTAINER_WORKSPACE}/{held}", *one.places) if place.startswith("/")}
    for target, held in shown.items():
        yield Mount(source=f"{folder}/{held}", target=target, read_only=True)


def _data_variables(data: Sequence[DataFolder], node: str, *, own_script: bool) -> Iterator[tuple[str, str]]:
    """Variables with the paths of the data; the trainer reads the first."""
    paths = {one.variable: f"{CONTAINER_WORKSPACE}/data/{one.held_as(node)}" for one in data}
    for first in list(paths.values())[:1]:
        yield environment.DATA_DIR, first
        if not own_script:
            yield "TRAINER_DATA_DIR", first
    yield from paths.items()


def _labels(request: LaunchRequest, identity: RunIdentity, node: NodeSpec, place: Placement) -> dict[str, str]:
    return {
        labels.LABEL_RUN: identity.run_id,
        labels.LABEL_PROJECT: request.project,
        labels.LABEL_ATTEMPT: str(identity.attempt),
        labels.LABEL_USER: identity.user,
        labels.LABEL_STARTED: identity.started_at,
        labels.LABEL_COMMAND: shlex.join(request.command),
        labels.LABEL_NODE: node.name,
        labels.LABEL_NODE_RANK: str(place.node_rank),
        labels.LABEL_FIRST_RANK: str(place.first_rank),
        labels.LABEL_NPROC: str(place.nproc_per_node),
        labels.LABEL_NNODES: str(len(place.names)),
        labels.LABEL_BACKEND: place.backend,
        labels.LABEL_MASTER: place.names[0],
        **({labels.LABEL_CLAIM: identity.claim} if identity.claim else {}),
    }


def secrets_folder(uid: int, identity: RunIdentity, node: str) -> str:
    """Name the folder of secrets on the node, in a tmpfs. Each attempt has its own: what ends one must not take the
    next one's; and so has each node, as some are processes of one computer."""
    return f"/dev/shm/orch-{uid}/{identity.run_id}/{identity.attempt}-{node}"  # noqa: S108  # a folder of mode 0700


def secret_mounts(secrets: Sequence[Secret], folder: str) -> tuple[Mount, ...]:
    return tuple(
        Mount(source=f"{folder}/{secret.name}", target=f"{SECRETS_INSIDE}/{secret.name}", read_only=True)
        for secret in secrets
    )


def secret_environment(secrets: Sequence[Secret]) -> dict[str, str]:
    """The convention of many images: NAME_FILE says where NAME is to be read."""
    return {f"{secret.name}_FILE": f"{SECRETS_INSIDE}/{secret.name}" for secret in secrets}
