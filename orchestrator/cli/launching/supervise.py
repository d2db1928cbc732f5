"""Supervise a run on machines, one just launched or one found again: follow it, and act when something breaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from orchestrator.cli.launching.following import Attended, Follow
from orchestrator.cli.launching.grants import plan_to_continue
from orchestrator.cli.launching.stopping import beside_the_record
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import report_error, say, write_line
from orchestrator.fleet.checkpoints.replicate import replicate
from orchestrator.fleet.connect import connected
from orchestrator.fleet.planning.request import build_request, with_engine
from orchestrator.fleet.runs.find_runs import RunningContainer, find_runs, run_on_nodes
from orchestrator.fleet.runs.launch import adopt
from orchestrator.fleet.runs.one_supervisor import only_supervisor
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.fleet.supervise.attempt import Callbacks
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.loop import Supervision, supervise
from orchestrator.fleet.supervise.replan import NodePool
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import UsageError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.run import Run
from orchestrator.specs.run_events import RunEvent
from orchestrator.specs.seen import seen_now
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord, records_meant

LOOKS = 20
"""Tries, until the supervisor of an attempt that was just stopped has ended."""


def supervised(
    pool: NodePool,
    plan: Plan,
    containers: Sequence[RunningContainer],
    followed: FollowedRun,
    *,
    quiet: bool,
    looks: int = LOOKS,
    no_answer_s: float | None = None,
) -> Follow:
    """Return a function that follows a run on machines, and acts when something breaks.

    `looks`: tries, until the supervisor of an attempt that was just stopped has ended; `no_answer_s`: seconds without
    an answer of any node until it gives up (default: the run's node timeout).
    """
    from orchestrator.cli.report import progress_view

    def follow(hear: Callable[[Update], None]) -> RunOutcome:
        notify = progress_view(quiet=quiet, lines=True).notify  # the screen may have a table of its own
        callbacks = Callbacks(update=hear, checkpoint=_replicate, failed=report_error, notify=notify)
        how = Supervision(pool=pool, callbacks=callbacks, no_answer_s=no_answer_s, followed=followed)
        with only_supervisor(followed.record, tries=looks):
            return supervise(how, plan, containers)

    return follow


def _replicate(nodes: Sequence[Node], plan: Plan, _step: int) -> None:
    """Copy a checkpoint to other nodes, so that the loss of rank 0's machine costs one interval at most."""
    if plan.replicas and plan.nnodes > 1:
        done = replicate(nodes, plan, copies=plan.replicas)
        if done.step is not None and done.copied:
            RunRecord(plan.run_id).note_copies(done.step, done.sha256, done.copied)
        for error in done.failed:
            say(f"note: no copy of the checkpoint there: {error}")


@contextmanager
def rejoined(
    inventory: Inventory, wanted: str | None, mode: OutputMode, *, finish: bool = False, **how: Any
) -> Iterator[Attended]:
    """Yield an active run to follow, without a screen. `finish`: complete an interrupted launch first; `how`: as in
    `supervised`."""
    from orchestrator.render.recovery import recovery_line
    from orchestrator.watch.follow_lines import FollowLines

    conditions = FollowLines()

    def hear(update: Update) -> None:
        lines = [recovery_line(update)]
        if isinstance(update, RunEvent):
            lines += conditions.after(update, followed.state, seen_now())
        for line in lines if not mode.as_json else ():
            if line:
                write_line(line)
                sys.stdout.flush()

    _must_be_of_machines(wanted)
    machines = with_engine(inventory, mode.engine)
    with connected(machines.nodes) as everyone:
        found = find_runs(everyone)
        run = run_on_nodes(found, wanted)
        if lines := beside_the_record(run, found):
            say(lines)
        resume = LaunchOptions(resume=run.run_id)
        plan = plan_to_continue(everyone, machines, resume, ask=not mode.as_json, attempt=run.attempt)
        names = (*(part.node for part in plan.nodes), *plan.away)
        request = build_request(machines, LaunchOptions(nodes=",".join(names)), plan, os.environ)
        nodes = {node.name: node for node in everyone if node.name in names}
        pool = NodePool(nodes=nodes, request=request)
        containers = adopt(nodes, plan, run) if finish else _containers(pool, plan, run)
        followed = FollowedRun(RunRecord(plan.run_id))
        follow = supervised(pool, plan, containers, followed, quiet=mode.as_json, **how)
        yield Attended(plan=plan, followed=followed, follow=follow, hear=hear, hooks=inventory.hooks)


def _must_be_of_machines(wanted: str | None) -> None:
    """UsageError: the run is a job of a cluster, where only its agents and the scheduler restart what fails."""
    plans = [record.plan() for record in records_meant(wanted)]
    if plans and (plan := plans[0]) and all(one and one.cluster for one in plans):
        raise UsageError(
            f"run {plan.run_id} is a job of cluster {plan.cluster}: its scheduler and its agents supervise it",
            hint=f"orch logs -f {plan.run_id}",
        )


def _containers(pool: NodePool, plan: Plan, run: Run) -> tuple[RunningContainer, ...]:
    """Return a container for every part of the plan; that of a silent node, unless it is on record, is looked for when
    the node answers."""
    members = run.members if run.attempt == plan.attempt else ()
    held = {member.node: member.container for member in members if member.container}
    journal = RunRecord(plan.run_id).journal
    made = journal.containers if journal.current and journal.current.number == plan.attempt else {}

    def container_of(part: NodePlan) -> RunningContainer:
        found = held.get(part.node)
        secrets = secrets_of((found or part.container).labels)
        node, id = pool.nodes[part.node], found.id if found else made.get(part.node, "")
        return RunningContainer(node=node, node_rank=part.node_rank, id=id, secrets=secrets)

    return tuple(map(container_of, plan.nodes))
