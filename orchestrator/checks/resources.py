"""Whether a run has the room that it is promised: disk, memory, shared memory, processors, its port, its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.checks.preflight import DISK_NEEDED_MIB
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.node_report import Examined

CHECKPOINTS_MIB = 5120
"""Three checkpoints of GPT-2 124M with AdamW (1.5 GB each): two kept and one being written."""
IMAGE_MIB = 2048
"""An image of torch for CPUs, unpacked; one for CUDA takes several times as much."""
SHM_MIB = 64
"""Docker's own default, with which DataLoader workers die."""
OPEN_FILES = 4096
"""DataLoader workers hand tensors over as file descriptors; 1024 are soon used up."""


def workspace(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A folder that the node's user may not write to."""
    for node in fleet:
        if node.host and node.host.workspace_writable is False:
            user = node.facts.user if node.facts else "its user"
            yield _found(
                node,
                "resources.workspace",
                Severity.ERROR,
                f"{user} may not write to {node.spec.workspace}",
                cause="the folder, or the nearest one above it that is there, belongs to somebody else",
                fix=f"on it: sudo install -d -o {user} {node.spec.workspace}; or set workspace in the inventory",
            )


def disk_low(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Room to begin with, and not for the checkpoints of a model of some size."""
    for node in fleet:
        free = node.facts.disk_free_mib if node.facts else None
        if free is not None and DISK_NEEDED_MIB <= free < CHECKPOINTS_MIB:
            yield _found(
                node,
                "resources.disk_low",
                Severity.WARNING,
                f"{free} MiB are free for its workspace: three checkpoints of GPT-2 124M take {CHECKPOINTS_MIB}",
                fix="orch clean; or make room, or set `workspace` in the inventory to a larger disk",
            )


def image_room(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No room where the engine keeps images, on a node that lacks the image."""
    sizes = [node.facts.image.size_bytes // 2**20 for node in fleet if node.facts and node.facts.image]
    needed = max([*sizes, IMAGE_MIB])
    for node in fleet:
        free = node.host.docker_free_mib if node.host else None
        if free is None or node.facts is None or node.spec.engine != "docker":
            continue
        if node.facts.image is None and node.facts.engine and free < needed:
            yield _found(
                node,
                "resources.image",
                Severity.ERROR,
                f"{free} MiB are free where Docker keeps images, and the image takes {needed}",
                fix="on it: docker system prune; or move Docker's data-root to a larger disk",
            )


def memory(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A limit above what the machine has protects nothing."""
    for node in fleet:
        there, limit = node.facts.memory_mib if node.facts else 0, node.spec.limits.memory_mib
        if 0 < there < limit:
            yield _found(
                node,
                "resources.memory",
                Severity.WARNING,
                f"its limit is {limit} MiB of memory, and the machine has {there}",
                cause="the whole machine would run out before the container does",
                fix=f"in the inventory: limits: {{memory: {max(1, there * 3 // 4096)}g}} at {node.name}",
            )


def memory_held(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """What a run is promised at the least is in use by other programs."""
    for node in fleet:
        free = node.host.memory_available_mib if node.host else None
        if free is not None and free < node.spec.limits.memory_reservation_mib:
            yield _found(
                node,
                "resources.memory_held",
                Severity.WARNING,
                f"{free} MiB of memory are available, and a run is promised {node.spec.limits.memory_reservation_mib}",
                cause="other programs hold it",
                fix="on it: ps -eo pid,rss,comm --sort=-rss | head, and end what is not needed",
            )


def cpus(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """More processors promised than there are."""
    for node in fleet:
        there = node.facts.cpus if node.facts else 0
        if 0 < there < node.spec.limits.cpus:
            yield _found(
                node,
                "resources.cpus",
                Severity.WARNING,
                f"its limit is {node.spec.limits.cpus:g} CPUs, and the machine has {there}",
                cause="the run takes what is there, and the machine has nothing left for itself",
                fix=f"in the inventory: limits: {{cpus: {max(1, there - 1)}}} at {node.name}",
            )


def shared_memory(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Shared memory too small for DataLoader workers, or not what was asked for."""
    for node in fleet:
        inside, asked = node.inside.shm_mib if node.inside else None, node.spec.limits.shm_mib
        if inside is not None and (inside <= SHM_MIB or inside < asked):
            yield _found(
                node,
                "resources.shm",
                Severity.WARNING,
                f"a container there has {inside} MiB of shared memory (/dev/shm), and {asked} were asked for",
                cause="DataLoader workers hand over batches in it, and die with a bus error where it is full",
                fix=f"in the inventory: limits: {{shm: 1g}} at {node.name}",
            )


def open_files(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Few file descriptors: those of a container, or of the user where ranks are processes."""
    for node in fleet:
        seen = node.inside if node.spec.engine == "docker" else node.host
        limit = seen.open_files if seen else None
        if limit is not None and limit < OPEN_FILES:
            yield _found(
                node,
                "resources.open_files",
                Severity.WARNING,
                f"a rank there may open {limit} files",
                cause="DataLoader workers hand tensors over as file descriptors: `Too many open files` after a while",
                fix='on it, in /etc/docker/daemon.json: "default-ulimits": {"nofile": {"Name": "nofile", "Soft":'
                ' 65536, "Hard": 65536}}; then: sudo systemctl restart docker'
                if node.spec.engine == "docker"
                else "ulimit -n 65536",
            )


def port_taken(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Somebody listens on the port of the rendezvous; a run takes the next one, which a firewall may not pass."""
    for node in fleet:
        if not node.host or not node.host.holders:
            continue
        port = node.host.holders[0].port
        yield _found(
            node,
            "resources.port_taken",
            Severity.WARNING,
            f"port {port} is taken by {', '.join(map(str, node.host.holders))}",
            cause="a run with this node as master takes the next free port, which a firewall may not let through",
            fix=f"on it: sudo ss -ltnp 'sport = :{port}'; or another master_port in the inventory",
        )


def _found(node: Examined, id: str, severity: Severity, message: str, *, cause: str = "", fix: str = "") -> Finding:
    return Finding(id=id, severity=severity, node=node.name, message=message, cause=cause, fix=fix)


CHECKS = (
    workspace,
    disk_low,
    image_room,
    memory,
    memory_held,
    cpus,
    shared_memory,
    open_files,
    port_taken,
)
