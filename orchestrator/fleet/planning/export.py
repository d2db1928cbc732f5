"""The plan of a run that another engine starts: of machines that are described, or of nodes that are asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.cost_model.memory import TransformerTraining
from orchestrator.fleet.gather import gather_facts
from orchestrator.fleet.planning.request import language_of, new_identity
from orchestrator.nodes.interface import Node
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import OrchError, UsageError
from orchestrator.specs.facts import GpuFacts, NodeFacts
from orchestrator.specs.inventory import Limits, NodeSpec
from orchestrator.specs.launch_options import DEFAULT_COMMAND, LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,39}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Equal machines of a cluster, as its user describes them: what a run may use of each."""

    count: int
    cpus: float
    memory_mib: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A plan, with the name of the image and of the machine for each node."""

    plan: Plan
    images: Mapping[str, str]
    hostnames: Mapping[str, str]


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


def plan_export(request: LaunchRequest, facts: Mapping[str, NodeFacts], identity: RunIdentity) -> Exported:
    """The plan that a launch makes of these facts. Raises as `plan_launch`."""
    plan = plan_launch(request, facts, identity)
    return Exported(
        plan=plan,
        images={part.node: request.image_tag(part.device) for part in plan.nodes},
        hostnames={part.node: facts[part.node].hostname or part.node for part in plan.nodes},
    )


def ask_nodes(nodes: Sequence[Node], request: LaunchRequest) -> tuple[dict[str, NodeFacts], list[OrchError]]:
    """Facts of the nodes that answered, by name, and the errors of the others."""
    outcomes = gather_facts(nodes, request)
    facts = {one.item.name: one.result for one in outcomes if one.result is not None}
    return facts, [one.error for one in outcomes if one.error is not None]


def export_identity(name: str, attempt: int) -> RunIdentity:
    """The identity of a run to be exported: `name` is its whole id, so that the same words make the same text.

    Empty: an id made from the time. UsageError: other characters than small letters, digits and `-`.
    """
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"--name {name}: small letters, digits and - only, at most 41, - neither first nor last")
    made = new_identity()
    return RunIdentity(run_id=name or made.run_id, user=made.user, started_at=made.started_at, attempt=attempt)
