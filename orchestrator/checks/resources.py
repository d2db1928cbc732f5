"""Space that a run needs: disk, memory, shared memory, processors, its port, its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined

DISK_NEEDED_MIB = 1024
"""Least room with which a run may begin."""
CHECKPOINTS_MIB = 5120
"""Three checkpoints of GPT-2 124M with AdamW (1.5 GB each): two kept and one being written."""
IMAGE_MIB = 2048
"""An image of torch for CPUs, unpacked; one for CUDA takes several times as much."""
SHM_MIB = 64
"""Docker's own default, with which DataLoader workers die."""
OPEN_FILES = 4096
"""DataLoader workers hand tensors over as file descriptors; 1024 are soon used up."""


def workspace(node: Examined) -> Iterator[Finding]:
    """A folder that the node's user may not write to."""
    if node.host and node.host.workspace_writable is False:
        user = node.facts.user if node.facts else "USER"
        yield Finding.of("resources.workspace", node.name, user=user, workspace=node.spec.workspace)


def disk_low(node: Examined) -> Iterator[Finding]:
    """Room to begin with, and not for the checkpoints of a model of some size."""
    free = node.facts.disk_free_mib if node.facts else None
    if free is not None and DISK_NEEDED_MIB <= free < CHECKPOINTS_MIB:
        yield Finding.of("resources.disk_low", node.name, free=free, CHECKPOINTS_MIB=CHECKPOINTS_MIB)


def image_room(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """No room where the engine keeps images, on a node that lacks the image."""
    sizes = [node.facts.image.size_bytes // 2**20 for node in fleet if node.facts and node.facts.image]
    needed = max([*sizes, IMAGE_MIB])
    for node in fleet:
        free = node.host.docker_free_mib if node.host else None
        if free is None or node.facts is None or node.spec.engine != "docker":
            continue
        if node.facts.image is None and node.facts.engine and free < needed:
            yield Finding.of("resources.image", node.name, free=free, needed=needed)


def memory(node: Examined) -> Iterator[Finding]:
    """A limit above what the machine has protects nothing."""
    there, limit = node.facts.memory_mib if node.facts else 0, limits_of(node.spec, node.facts).memory_mib
    if 0 < there < limit:
        yield Finding.of("resources.memory", node.name, limit=limit, there=there, gib=max(1, there * 3 // 4096))


def memory_held(node: Examined) -> Iterator[Finding]:
    """Memory that is reserved for a run is in use by other programs."""
    free = node.host.memory_available_mib if node.host else None
    reserved = limits_of(node.spec, node.facts).memory_reservation_mib
    if free is not None and free < reserved:
        yield Finding.of("resources.memory_held", node.name, free=free, memory_reservation_mib=reserved)


def cpus(node: Examined) -> Iterator[Finding]:
    """More processors promised than there are."""
    there, limit = node.facts.cpus if node.facts else 0, node.spec.limits.cpus
    if limit and 0 < there < limit:
        yield Finding.of("resources.cpus", node.name, limit=limit, there=there, cpus=max(1, there - 1))


def shared_memory(node: Examined) -> Iterator[Finding]:
    """Shared memory too small for DataLoader workers, or not what was asked for."""
    inside, asked = node.inside.shm_mib if node.inside else None, limits_of(node.spec, node.facts).shm_mib
    if inside is not None and (inside <= SHM_MIB or inside < asked):
        yield Finding.of("resources.shm", node.name, inside=inside, asked=asked)


def open_files(node: Examined) -> Iterator[Finding]:
    """Few file descriptors: those of a container, or of the user where ranks are processes."""
    seen = node.inside if node.spec.engine == "docker" else node.host
    limit = seen.open_files if seen else None
    if limit is not None and limit < OPEN_FILES:
        yield Finding.of(
            "resources.open_files",
            node.name,
            case="container" if node.spec.engine == "docker" else "process",
            limit=limit,
        )


def port_taken(node: Examined) -> Iterator[Finding]:
    """Report a listener on the port of the rendezvous; a run takes the next one, which a firewall may not pass."""
    if not node.host or not node.host.holders:
        return
    port = node.host.holders[0].port
    yield Finding.of("resources.port_taken", node.name, port=port, holders=", ".join(map(str, node.host.holders)))


def disk_room(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No room for checkpoints."""
    for facts in fleet:
        free = facts.disk_free_mib
        if free is not None and free < DISK_NEEDED_MIB:
            yield Finding.of("disk.full", facts.name, disk_free_mib=free, DISK_NEEDED_MIB=DISK_NEEDED_MIB)


def memory_limit(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Less memory than a container is promised at the least."""
    for facts in fleet:
        if 0 < facts.memory_mib < 1024:
            yield Finding.of("memory.small", facts.name, memory_mib=facts.memory_mib)


LAUNCH_CHECKS = (disk_room, memory_limit)
NODE_CHECKS = (workspace, disk_low, memory, memory_held, cpus, shared_memory, open_files, port_taken)
CHECKS = (image_room,)
