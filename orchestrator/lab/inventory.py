"""The inventory of a lab, with container limits that suit N simulated machines on one computer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.lab.state import LOGIN, USER, Lab
from orchestrator.specs.container_limits import ContainerLimits
from orchestrator.specs.inventory_files.inventory_yaml import write_yaml

_HEADER = "# Written by `orch lab up`; removed by `orch lab down`.\n"
PARTITION, URGENT = "debug", "urgent"
"""Partitions of a cluster; jobs of the second one take nodes from those of the first."""
SHARED = "/shared"
"""Folder that all machines of a cluster share, in place of a network file system."""
WORKSPACE = f"{SHARED}/orch"
SEED_CPUS = 2.0
_LARGEST_MIB = 4096
_SMALLEST_MIB = 2048
"""Minimum for importing torch and training; limits are not reservations, so nodes may overlap."""
_STEP_MIB = 512
_SHARE = 0.8
"""Share of this computer's memory for all nodes together."""
_OF_MACHINE = 0.75
"""Share of a node with a given size; the rest is for its engine and its system."""


SMALLEST_MACHINE_MIB = 512
"""sshd and an idle engine take about 100 MB; below this size the kernel kills them while they start."""


@dataclass(frozen=True, kw_only=True)
class MachineSize:
    """Requested size of one node; None: it may use all of this computer."""

    cpus: float | None = None
    memory_mib: int | None = None


def suited_limits(nodes: int, *, cpus: float, memory_mib: int, own: MachineSize | None = None) -> ContainerLimits:
    """The limits of one training container on a computer of this size.

    Cores are shared, not split: a quota of 0.4 cores stops the two threads of a rank in the middle of every step.
    """
    share = int(memory_mib * _SHARE / nodes) // _STEP_MIB * _STEP_MIB
    memory = min(max(share, _SMALLEST_MIB), _LARGEST_MIB)
    quota = min(SEED_CPUS, cpus)
    if own and own.cpus:
        quota = min(quota, own.cpus)
    if own and own.memory_mib:
        memory = min(_LARGEST_MIB, int(own.memory_mib * _OF_MACHINE))
    half = min(1024, memory // 2)
    return ContainerLimits(cpus=quota, memory_mib=memory, memory_reservation_mib=half, shm_mib=half)


def inventory_text(lab: Lab, limits: ContainerLimits, folder: Path) -> str:
    """`inventory.yaml` for this lab; `folder` holds its keys, and the workspaces of process nodes."""
    process = lab.engine == "process"
    login = {"user": USER, "identity": str(folder / "id_ed25519")}
    sizes = {
        "memory_reservation": limits.memory_reservation_mib,
        "memory": limits.memory_mib,
        "shm": limits.shm_mib,
    }
    document = {
        "project": "lab",
        "defaults": {
            **({"connection": "local", "engine": "process"} if process else login),
            "limits": {"cpus": limits.cpus, **{key: f"{mib}m" for key, mib in sizes.items()}},
        },
        "nodes": {
            # nodes that are processes share one file system: each gets a folder of its own
            node.name: {"address": node.address} | ({"workspace": str(folder / "nodes" / node.name)} if process else {})
            for node in lab.nodes
        },
    }
    return write_yaml(document, header=_HEADER)


def slurm_inventory(lab: Lab, limits: ContainerLimits, folder: Path, python: str) -> str:
    """`inventory.yaml` of a Slurm cluster, with its login node and `python`, which its jobs run."""
    login = next(node for node in lab.nodes if node.name == LOGIN)
    cluster = {
        "engine": "slurm",
        "login": f"{USER}@{login.address}",
        "identity": str(folder / "id_ed25519"),
        "partition": PARTITION,
        "workspace": WORKSPACE,
        "python": python,
        "cpus": max(1, int(limits.cpus)),
        "memory": f"{limits.memory_mib}m",
        "time": "60",
    }
    return write_yaml({"project": "lab", "clusters": {"lab": cluster}}, header=_HEADER)
