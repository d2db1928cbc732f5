"""The plan of a run that another engine starts, of machines that are described and not asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.cost_model.memory import TransformerTraining
from orchestrator.fleet.planning.request import language_of, new_identity
from orchestrator.specs.errors import UsageError
from orchestrator.specs.facts import GpuFacts, NodeFacts
from orchestrator.specs.inventory import Limits, NodeSpec
from orchestrator.specs.launch_options import DEFAULT_COMMAND, LaunchOptions
from orchestrator.specs.request import LaunchRequest, RunIdentity

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,39}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Equal machines of a cluster, as its user describes them: what a run may use of each."""

    count: int
    cpus: float
    memory_mib: int
    gpus: int


def export_request(
    options: LaunchOptions,
    nodes: Sequence[NodeSpec],
    own_environment: Mapping[str, str],
    *,
    project: str,
    master_port: int,
    sizes: TransformerTraining | None = None,
) -> LaunchRequest:
    """The request of a launch that brings neither code nor data: both lie in the workspace of the machines."""
    return LaunchRequest(
        **{**options.settings(), "environment": {**language_of(own_environment), **options.environment}, "image": ""},
        project=project,
        nodes=tuple(nodes),
        command=options.command or DEFAULT_COMMAND,
        master_port=master_port,
        absence_s=options.absence_limit_s,
        sizes=sizes,
    )


def described(machines: Machines) -> tuple[tuple[NodeSpec, ...], dict[str, NodeFacts]]:
    """The machines as nodes with facts, of which none was asked."""
    names = [f"node-{index}" for index in range(machines.count)]
    limits = Limits.model_validate({"cpus": machines.cpus, "memory": f"{machines.memory_mib}m"})
    nodes = tuple(NodeSpec(name=name, address=name, interface="eth0", limits=limits) for name in names)
    gpus = tuple(GpuFacts(index=index, uuid="", name="", driver_version="") for index in range(machines.gpus))
    return nodes, {name: NodeFacts(name=name, address=name, gpus=gpus) for name in names}


def export_identity(name: str, attempt: int) -> RunIdentity:
    """The identity of a run to be exported: `name` is its whole id, so that the same words make the same text.

    Empty: an id made from the time. UsageError: other characters than small letters, digits and `-`.
    """
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"--name {name}: small letters, digits and - only, at most 41, - neither first nor last")
    made = new_identity()
    return RunIdentity(run_id=name or made.run_id, user=made.user, started_at=made.started_at, attempt=attempt)
