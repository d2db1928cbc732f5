"""Resources of a container: the inventory's, and a share of the machine for each key that it leaves out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import Limits, NodeSpec

FEW_CORES = 2
"""Machines with at most so many cores give all of them: a spare core would cost a run on two cores half its speed, and
what it is spared for (sshd, the engine, the agent) needs a few percent of one."""
MEMORY_SHARE = 0.8
"""The rest is for the system, the engine and the file cache, from which training data is read again."""
RESERVED_SHARE = 0.25
"""Share of the memory limit that the kernel leaves to the container where memory is short."""
SHM_SHARE = 0.25
"""Share of the memory limit, against which files in /dev/shm count: loaders that fill it leave the ranks the rest."""
GPU_SHM_SHARE = 0.5
"""Share of memory on a GPU node: the model lies on the cards; host memory holds little but batches and NCCL's
buffers."""
SHM_MIB = 8192
"""Most shared memory by default, on a GPU node for each card: 16 loaders that hold two batches of 256 MiB each."""


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """Resources that a container gets. The defaults are for a machine about which nothing is known."""

    cpus: float = 2.0
    memory_mib: int = 4096
    memory_reservation_mib: int = 1024
    shm_mib: int = 1024


def limits_of(node: NodeSpec, facts: NodeFacts | None) -> ContainerLimits:
    """Limits of a run's container on this node."""
    if facts is None:
        return container_limits(node.limits)
    gpus = len(facts.gpus) if node.device != "cpu" else 0
    return container_limits(node.limits, cpus=facts.cpus, memory_mib=facts.memory_mib, gpus=gpus)


def container_limits(asked: Limits, *, cpus: int = 0, memory_mib: int = 0, gpus: int = 0) -> ContainerLimits:
    """Limits for a machine with so many cores, so much memory and so many usable GPUs; 0 cores or MiB: not known.

    Each key of the inventory wins for itself, and the shares follow it: `memory: 2g` alone gives 512 MiB of /dev/shm.
    More cores than the machine has would be refused by its engine.
    """
    unknown = ContainerLimits()
    spare = cpus if cpus <= FEW_CORES else cpus - 1
    quota = asked.cpus or float(spare) or unknown.cpus
    reserved = asked.memory_reservation_mib
    memory = asked.memory_mib or max(int(memory_mib * MEMORY_SHARE) or unknown.memory_mib, reserved or 0)
    shm = min(int(memory * GPU_SHM_SHARE), gpus * SHM_MIB) if gpus else min(int(memory * SHM_SHARE), SHM_MIB)
    return ContainerLimits(
        cpus=min(quota, cpus or quota),
        memory_mib=memory,
        memory_reservation_mib=reserved or int(memory * RESERVED_SHARE),
        shm_mib=asked.shm_mib or shm,
    )
