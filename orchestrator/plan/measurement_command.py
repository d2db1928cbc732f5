"""Runs that pass: they test or measure, and leave nothing on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.plan.command import is_own_script
from orchestrator.specs.errors import UsageError
from orchestrator.specs.request import LaunchRequest

FORECAST = "--forecast"
"""The trainer's word for measuring only."""
RENDEZVOUS_S = 90
"""How long the nodes of a test wait for one another: torch loads in 2 to 30 s."""
PROCESS_GROUP_S = 20
"""How long a rank of a test waits for the others. What it sends is a matter of half a second on any link."""


def measuring(command: Sequence[str]) -> tuple[str, ...]:
    """The same command of the trainer, told to measure, to forecast and to end."""
    if is_own_script(command):
        raise UsageError(
            f"--forecast measures workloads of the trainer, and `{' '.join(command[:2])}` is a script of yours",
            hint="orch launch --forecast -- gpt2 …, or your model: -- custom --module my_file.py:build",
        )
    return tuple(command) if FORECAST in command else (*command, FORECAST)


def in_miniature(request: LaunchRequest, backend: str = "auto") -> LaunchRequest:
    """The same nodes, image and interfaces, with the connectivity test in place of a training, and short patience."""
    if backend not in ("auto", "gloo", "nccl"):
        raise UsageError(f"--backend {backend}: expected auto, gloo or nccl")
    return replace(
        request,
        command=("test-ddp", "--backend", backend),
        environment={**request.environment, "PET_RDZV_CONF": f"timeout={RENDEZVOUS_S}"},
        process_group_timeout_s=PROCESS_GROUP_S,
        max_restarts=0,
        absence_s=RENDEZVOUS_S,
    )
