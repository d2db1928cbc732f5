"""A run that goes on, found again: its plan, its containers, and all nodes that it may have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.cli.launching.request import build_request, with_engine
from orchestrator.cli.launching.watching import Attended
from orchestrator.cli.launching.words import Wanted
from orchestrator.fleet.connect import connected
from orchestrator.fleet.runs.adopt import adopt
from orchestrator.fleet.runs.find_runs import choose_run, find_runs
from orchestrator.fleet.runs.launch import Seated
from orchestrator.fleet.runs.recall import recall_plan
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.fleet.watching.replan import Company
from orchestrator.plan.recovery import Told
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import Run


@contextmanager
def rejoined(
    inventory: Inventory, wanted: str | None, engine: str, told: Callable[[Told], None], *, finish: bool = False
) -> Iterator[Attended]:
    """Within it, the run can be followed. `finish`: what a launch that was cut short left undone is done first."""
    machines = with_engine(inventory, engine)
    specs = {spec.name: spec for spec in machines.nodes}
    with connected(machines.nodes) as everyone:
        run = choose_run(find_runs(everyone), wanted)
        plan = recall_plan(everyone, specs, machines.project, run.run_id, attempt=run.attempt)
        names = (*(part.node for part in plan.nodes), *plan.away)
        request = build_request(machines, Wanted(nodes=",".join(names)), plan, os.environ)
        nodes = {node.name: node for node in everyone if node.name in names}
        company = Company(nodes=nodes, request=request)
        seated = adopt(nodes, plan, run) if finish else _seats(company, plan, run)
        yield Attended(company=company, plan=plan, seated=seated, told=told)


def _seats(company: Company, plan: Plan, run: Run) -> tuple[Seated, ...]:
    """Every part of the plan; a container that nobody can be asked of now is looked for when its node answers."""
    held = {member.node: member.container.id for member in run.members if member.container}
    return tuple(
        Seated(
            node=company.nodes[part.node],
            node_rank=part.node_rank,
            container=held.get(part.node, ""),
            secrets=secrets_of(part.container.labels),
        )
        for part in plan.nodes
    )
