"""Finish a launch that was cut short: create the missing containers, and start those that were only created."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import place_token, secrets_of
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import ConflictError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import Run, State
from orchestrator.specs.secret import REDACTED

START_S = 60.0


def adopt(nodes: Mapping[str, Node], plan: Plan, run: Run) -> tuple[RunningContainer, ...]:
    """All containers of the plan, running. Raises the first node's error; containers already started continue.

    ConflictError: a container is missing, and only a launch can create it.
    """
    held = {member.node: member.container for member in run.members if member.container}
    if run.attempt != plan.attempt:
        held = {}
    lacking = [part for part in plan.nodes if part.node not in held]
    names, hint = ", ".join(part.node for part in lacking), f"orch stop {plan.run_id}, then: orch resume {plan.run_id}"
    if lacking and (plan.secrets or REDACTED in plan.environment.values()):  # no plan holds their values
        raise ConflictError(f"run {plan.run_id} has secrets, and no container yet on {names}", hint=hint)
    if any(not part.container.image for part in lacking):
        problem = f"run {plan.run_id} was launched from another computer, and has no container yet on {names}"
        raise ConflictError(problem, hint=hint)
    containers = []
    for part in plan.nodes:
        facts = held.get(part.node)
        id = facts.id if facts else nodes[part.node].engine.create(part.container)
        secrets = secrets_of((facts or part.container).labels)
        containers.append(RunningContainer(node=nodes[part.node], node_rank=part.node_rank, id=id, secrets=secrets))
    if all(facts.state is State.CREATED for facts in held.values()):  # otherwise each has its token
        for placed in place_token([(nodes[part.node], part) for part in plan.nodes], plan.run_id):
            placed.value()
    running = {node for node, facts in held.items() if facts.state is not State.CREATED}
    created = [one for one in containers if one.node.name not in running]
    for outcome in fan_out(created, lambda one: one.node.engine.start(one.id), timeout_s=START_S):
        outcome.value()
    RunRecord(plan.run_id).save_plan(plan, {one.node.name: one.id for one in containers})
    return tuple(containers)
