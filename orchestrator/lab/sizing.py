"""Limits for training containers that suit N machines which are in truth one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.inventory import Limits

SEED_CPUS = 2.0
_LARGEST_MIB = 4096
_SMALLEST_MIB = 2048
"""Below, importing torch and training anything leaves no air; limits are no reservation, so nodes may overlap."""
_STEP_MIB = 512
_SHARE = 0.8
"""Of this computer's memory, for all nodes together."""
_OF_MACHINE = 0.75
"""Of a node of given size: the rest is its engine's and its system's."""


SMALLEST_MACHINE_MIB = 512
"""sshd and an idle engine take about 100 MB; below this size the kernel kills them while they start."""


@dataclass(frozen=True, kw_only=True)
class MachineSize:
    """The size of one node where somebody asked for it; else it may use all of this computer."""

    cpus: float | None = None
    memory_mib: int | None = None


def suited_limits(nodes: int, *, cpus: float, memory_mib: int, own: MachineSize | None = None) -> Limits:
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
    return Limits.model_validate(
        {
            "cpus": quota,
            "memory_reservation": f"{min(1024, memory // 2)}m",
            "memory": f"{memory}m",
            "shm": f"{min(1024, memory // 2)}m",
        }
    )
