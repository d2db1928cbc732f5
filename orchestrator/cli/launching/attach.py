"""A run that goes on, found again: its plan, its containers, and all nodes that it may have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.cli.launching.grants import plan_to_continue
from orchestrator.cli.launching.request import build_request, with_engine
from orchestrator.cli.launching.supervise import Attended
from orchestrator.cli.report import say
from orchestrator.fleet.connect import connected
from orchestrator.fleet.runs.adopt import adopt
from orchestrator.fleet.runs.find_runs import choose_run, find_runs
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.fleet.supervise.replan import Company
from orchestrator.plan.recovery import Told
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import Member, Run, State


@contextmanager
def rejoined(
    inventory: Inventory,
    wanted: str | None,
    engine: str,
    told: Callable[[Told], None],
    *,
    ask: bool = False,
    finish: bool = False,
) -> Iterator[Attended]:
    """Within it, the run can be followed. `ask`: whether a person may be asked about a plan that is a node's word.
    `finish`: what a launch that was cut short left undone is done first."""
    machines = with_engine(inventory, engine)
    with connected(machines.nodes) as everyone:
        run = _as_launched_here(choose_run(find_runs(everyone), wanted))
        resume = LaunchOptions(resume=run.run_id)
        plan = plan_to_continue(everyone, machines, resume, ask=ask, attempt=run.attempt)
        names = (*(part.node for part in plan.nodes), *plan.away)
        request = build_request(machines, LaunchOptions(nodes=",".join(names)), plan, os.environ)
        nodes = {node.name: node for node in everyone if node.name in names}
        company = Company(nodes=nodes, request=request)
        seated = adopt(nodes, plan, run) if finish else _seats(company, plan, run)
        yield Attended(company=company, plan=plan, seated=seated, told=told)


def _as_launched_here(run: Run) -> Run:
    """The attempt that this computer launched, while more of its containers are up than of the one that is shown as the
    newest: who really resumes a run elsewhere stops this attempt first."""
    own = RunRecord(run.run_id).plan_from(run.attempt)
    if own is None or own.attempt == run.attempt:
        return run
    members = tuple(member for attempt, member in run.earlier if attempt == own.attempt)
    if len(_up(members)) <= len(_up(run.members)):
        return run
    shown = ", ".join(_up(run.members)) or "a node"
    still = f"attempt {own.attempt}, launched from this computer, still runs on {', '.join(_up(members))}"
    say(f"note: {shown} shows attempt {run.attempt} of run {run.run_id}, which is left out: {still}")
    return replace(run, attempt=own.attempt, members=members)


def _up(members: Sequence[Member]) -> list[str]:
    """Nodes with a container that runs or is about to."""
    return sorted({member.node for member in members if member.state in (State.RUNNING, State.CREATED)})


def _seats(company: Company, plan: Plan, run: Run) -> tuple[RunningContainer, ...]:
    """Every part of the plan; a container that nobody can be asked of now is looked for when its node answers."""
    held = {member.node: member.container for member in run.members if member.container}
    if run.attempt != plan.attempt:
        held = {}
    return tuple(
        RunningContainer(
            node=company.nodes[part.node],
            node_rank=part.node_rank,
            container=held[part.node].id if part.node in held else "",
            secrets=secrets_of((held.get(part.node) or part.container).labels),
        )
        for part in plan.nodes
    )
