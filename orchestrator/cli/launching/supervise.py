"""Follow a run, one just launched or one found again, and act when something breaks; or leave it to a supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.cli.launching.grants import plan_to_continue
from orchestrator.cli.launching.stopping import beside_the_record
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import report_error, say, write_json, write_line
from orchestrator.fleet.checkpoints.replicate import replicate
from orchestrator.fleet.connect import connected
from orchestrator.fleet.planning.request import build_request, with_engine
from orchestrator.fleet.runs.find_runs import RunningContainer, find_runs, run_on_nodes
from orchestrator.fleet.runs.launch import adopt
from orchestrator.fleet.runs.one_supervisor import only_supervisor
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.hooks import HookResult, Hooks
from orchestrator.fleet.supervise.loop import Callbacks, Supervision, supervise
from orchestrator.fleet.supervise.replan import NodePool
from orchestrator.nodes.interface import Node
from orchestrator.nodes.state_files import open_private
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PartialError, RunFailedError, UsageError
from orchestrator.specs.inventory import HookSpec, Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.replaced import replaced
from orchestrator.specs.run import Run
from orchestrator.specs.run_events import RunEvent
from orchestrator.specs.secret import concealed
from orchestrator.specs.seen import seen_now
from orchestrator.state.phase import Phase
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord, records_meant

LOOKS = 20
"""Tries, until the supervisor of an attempt that was just stopped has ended."""
LOG = "supervisor.log"
"""Output of a detached supervisor, in the run's folder."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """An active run, and the function that receives its events."""

    pool: NodePool
    plan: Plan
    containers: Sequence[RunningContainer]
    followed: FollowedRun
    hear: Callable[[Update], None]
    hooks: HookSpec = field(default_factory=HookSpec)
    looks: int = LOOKS
    screen: AbstractContextManager[object] = field(default_factory=nullcontext)


def see_through(run: Attended, mode: OutputMode, *, no_answer_s: float | None = None) -> int:
    """Follow the run to its end and return the exit code. Ctrl-C leaves it to a supervisor in the background.

    `no_answer_s`: seconds without an answer of any node until it gives up (default: the run's node timeout).
    """
    from orchestrator.cli.report import progress_view

    def follow(hear: Callable[[Update], None]) -> RunOutcome:
        notify = progress_view(quiet=mode.as_json, lines=True).notify  # the screen may have a table of its own
        callbacks = Callbacks(update=hear, checkpoint=_replicate, failed=report_error, notify=notify)
        how = Supervision(pool=run.pool, callbacks=callbacks, no_answer_s=no_answer_s, followed=run.followed)
        with only_supervisor(run.followed.record, tries=run.looks), run.screen:
            return supervise(how, run.plan, run.containers)

    def leave() -> None:
        say(f"\nrun {run.plan.run_id} continues without you")
        leave_to_supervisor(run.plan, mode)

    return follow_to_end(follow, run.plan, run.followed, run.hear, run.hooks, mode, leave=leave)


def follow_to_end(
    follow: Callable[[Callable[[Update], None]], RunOutcome],
    plan: Plan,
    followed: FollowedRun,
    show: Callable[[Update], None],
    hooks: HookSpec,
    mode: OutputMode,
    *,
    leave: Callable[[], None],
) -> int:
    """Call `follow` with a function that shows the events and runs the user's commands; show the end of the run.

    Return the exit code. `leave`: called on Ctrl-C. PartialError: no node answers any more.
    """
    from orchestrator.cli.launching.view import tell_end

    folder = mode.inventory.parent if mode.inventory else Path()
    of_user = Hooks(spec=hooks, plan=plan, followed=followed, folder=folder)

    def hear(update: Update) -> None:
        show(update)
        of_user.hear(update)
        tell_hooks(of_user.results())

    try:
        outcome = follow(hear)
    except KeyboardInterrupt:
        leave()
        return EXIT_INTERRUPTED
    if outcome.phase is not Phase.LOST:
        of_user.end(outcome)
    tell_hooks(of_user.results(wait=True))
    if outcome.phase is Phase.LOST:
        raise PartialError(
            f"no node of run {plan.run_id} answers; it may continue there",
            hint=f"when they do again: orch supervise {plan.run_id}",
        )
    tell_end(followed.record.plan() or plan, outcome, mode)
    return RunFailedError.exit_code if outcome.failure else EXIT_OK


def tell_hooks(results: Sequence[HookResult]) -> None:
    """Print the output of the user's commands, and name those that failed: that changes nothing of the run."""
    for result in results:
        for line in result.output.splitlines():
            say(f"{result.name}: {line}")
        if result.problem:
            say(f"note: hook {result.name}: {result.problem}\n  its command: {result.text}")


def _replicate(nodes: Sequence[Node], plan: Plan, _step: int) -> None:
    """Copy a checkpoint to other nodes, so that the loss of rank 0's machine costs one interval at most."""
    if plan.replicas and plan.nnodes > 1:
        done = replicate(nodes, plan, copies=plan.replicas)
        if done.step is not None and done.copied:
            RunRecord(plan.run_id).note_copies(done.step, done.sha256, done.copied)
        for error in done.failed:
            say(f"note: no copy of the checkpoint there: {error}")


def detach(plan: Plan, mode: OutputMode) -> int:
    """Write the run's id, and leave the run to a supervisor in the background."""
    if mode.as_json:
        write_json({"run_id": plan.run_id})
    else:
        write_line(plan.run_id)
    leave_to_supervisor(plan, mode)
    return EXIT_OK


def leave_to_supervisor(plan: Plan, mode: OutputMode) -> None:
    """Start `orch supervise` in a session of its own, which outlives this command; nothing with `--no-supervise`.

    Values that no record holds are in its environment, in case it has to launch the next attempt.
    """
    run = plan.run_id
    if not mode.no_supervise:
        log = RunRecord(run).folder / LOG
        inventory = ("-i", str(mode.inventory)) if mode.inventory else ()
        engine = ("--engine", mode.engine) if mode.engine else ()
        command = [sys.executable, "-P", "-m", "orchestrator", "supervise", run, *inventory, *engine]
        _spawn.get()(command, log, concealed(plan.environment))
        say(f"  supervised in the background; its log: {log}")
    tell_next(run)


def tell_next(run: str) -> None:
    """Print the commands for a run that is not followed any more."""
    say(f"  → orch logs -f {run}   orch status {run}   orch stop {run}")


def spawn(argv: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
    """Start a process in the background, with these variables added to the environment."""
    environment, null = {**os.environ, **variables}, subprocess.DEVNULL
    with open_private(log) as out:
        subprocess.Popen(argv, stdin=null, stdout=out, stderr=out, env=environment, start_new_session=True)


Spawn = Callable[[Sequence[str], Path, Mapping[str, str]], None]

_spawn: ContextVar[Spawn] = ContextVar("spawn", default=spawn)


def spawning_by(other: Spawn) -> AbstractContextManager[None]:
    """Start supervisors with `other` inside this context: tests record them."""
    return replaced(_spawn, other)


@contextmanager
def rejoined(inventory: Inventory, wanted: str | None, mode: OutputMode, *, finish: bool = False) -> Iterator[Attended]:
    """Yield an active run to follow, without a screen. `finish`: complete an interrupted launch first."""
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
        yield Attended(pool=pool, plan=plan, containers=containers, followed=followed, hear=hear, hooks=inventory.hooks)


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
