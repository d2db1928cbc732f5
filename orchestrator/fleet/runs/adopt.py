"""Finish a launch that was cut short: what lacks is created, what was created is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.agents_token import place_token
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import ConflictError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import Run, State
from orchestrator.specs.secret import REDACTED

START_S = 60.0


def adopt(nodes: Mapping[str, Node], plan: Plan, run: Run) -> tuple[RunningContainer, ...]:
    """All containers of the plan, running. Raises the first node's error; what was started then continues."""
    held = {member.node: member.container for member in run.members if member.container}
    if run.attempt != plan.attempt:
        held = {}
    lacking = [part for part in plan.nodes if part.node not in held]
    _require_no_secret(plan, [part.node for part in lacking])
    if any(not part.container.image for part in lacking):
        raise ConflictError(
            f"run {plan.run_id} was launched from another computer, and has no container yet on "
            f"{', '.join(part.node for part in lacking)}",
            hint=f"orch stop {plan.run_id}, then: orch resume {plan.run_id}",
        )
    seated = []
    for part in plan.nodes:
        container = held.get(part.node)
        id = container.id if container else nodes[part.node].engine.create(part.container)
        secrets = secrets_of((container or part.container).labels)
        seated.append(RunningContainer(node=nodes[part.node], node_rank=part.node_rank, container=id, secrets=secrets))
    if all(container.state is State.CREATED for container in held.values()):  # else each has its token
        for placed in place_token([(nodes[part.node], part) for part in plan.nodes], plan.run_id):
            placed.value()
    asleep = [seat for seat in seated if seat.node.name not in held or held[seat.node.name].state is State.CREATED]
    for outcome in fan_out(asleep, lambda seat: seat.node.engine.start(seat.container), timeout_s=START_S):
        outcome.value()
    RunRecord(plan.run_id).save_plan(plan)
    return tuple(seated)


def _require_no_secret(plan: Plan, lacking: Sequence[str]) -> None:
    """ConflictError: containers lack whose secrets no plan holds; only a launch can hand them over."""
    if lacking and (plan.secrets or REDACTED in plan.environment.values()):
        raise ConflictError(
            f"run {plan.run_id} has secrets, and no container yet on {', '.join(lacking)}",
            hint=f"orch stop {plan.run_id}, then: orch resume {plan.run_id}",
        )
