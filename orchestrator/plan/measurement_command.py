"""Short runs that test or measure and leave nothing on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.plan.command import is_own_script
from orchestrator.specs.errors import UsageError
from orchestrator.specs.request import LaunchRequest

FORECAST = "--forecast"
"""Option of the trainer: measure, predict, end."""
RENDEZVOUS_S = 90
"""Seconds that the nodes of a test wait for each other: torch loads in 2 to 30 s."""
PROCESS_GROUP_S = 20
"""Seconds that a rank of a test waits for the others; its messages take half a second on any link."""


def measuring(command: Sequence[str]) -> tuple[str, ...]:
    """Return the trainer's command with --forecast. UsageError: the command is the user's own script."""
    if is_own_script(command):
        raise UsageError(
            f"--forecast measures workloads of the trainer, and `{' '.join(command[:2])}` is your own script",
            hint="orch launch --forecast -- gpt2 …, or your model: -- custom --module my_file.py:build",
        )
    return tuple(command) if FORECAST in command else (*command, FORECAST)


def in_miniature(request: LaunchRequest, backend: str = "auto") -> LaunchRequest:
    """Return the request with the connectivity test in place of a training, and short timeouts."""
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
