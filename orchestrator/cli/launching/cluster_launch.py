"""The steps of a launch on a cluster: plan without its nodes, confirm, submit, follow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from orchestrator.checks.preflight import data_missing
from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.grants import agree_to_hooks
from orchestrator.cli.launching.own_code import OwnCode, may_be_copied, own_code
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import progress_view, report_error, say, write_document, write_json, write_line
from orchestrator.fleet.checkpoints.newest import newest_anywhere, steps_lost
from orchestrator.fleet.connect import carrier_of
from orchestrator.fleet.planning.cluster import cluster_facts, cluster_request
from orchestrator.fleet.planning.request import new_identity
from orchestrator.fleet.runs.submit import Job, next_attempt, submit
from orchestrator.fleet.supervise.job import JobCallbacks, follow_job
from orchestrator.nodes.carrier import CarriedAttempt
from orchestrator.nodes.cluster_nodes import lone_login
from orchestrator.nodes.interface import Node
from orchestrator.nodes.slurm import SlurmCarrier
from orchestrator.nodes.slurm_answers import queue_reason
from orchestrator.plan.bound_nodes import port_of
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.sbatch import batch_script
from orchestrator.render.printable import counted
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    PreflightError,
    UsageError,
)
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import HookSpec, Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_data
from orchestrator.specs.request import LaunchRequest
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord
from orchestrator.store.secret_values import require_values

NOT_THERE = {
    "master": "--master", "shard": "--shard", "fetch_once": "--fetch-once",
    "min_nodes": "--min-nodes", "engine": "--engine", "profile": "--profile",
}  # fmt: skip
"""Options of a launch that a scheduler decides on, or that need each node before the start."""


@dataclass(frozen=True, kw_only=True)
class ClusterRun(Job):
    """A run that is ready to be submitted."""

    code: OwnCode | None
    """The user's code, which a launch copies to the cluster."""


def launch_on(inventory: Inventory, options: LaunchOptions, mode: OutputMode, *, earlier: Plan | None = None) -> int:
    """Submit a run as one job of the cluster `options.on` and follow it, or print what would be submitted; return the
    exit code. `earlier`: the last attempt of a run that is resumed."""
    if mode.forecast:
        raise UsageError(
            "--forecast measures nodes, and a cluster has none before the job starts",
            hint=f"orch launch --on {options.on} --nodes 2 -- gpt2 --forecast",
        )
    if not mode.dry_run:
        require_consent(yes=mode.confirmed, look_first="--dry-run")
    agree_to_hooks(inventory.hooks, mode)
    with ready_on(inventory, options, mode, earlier=earlier) as run:
        if run.code:
            say(f"code: {run.code}, to be copied to {run.carrier.name} once")
        if mode.dry_run:
            if mode.as_json:
                write_json({**to_data(run.plan), "script": run.script})
            else:
                write_document(run.script)
            return EXIT_OK
        if not mode.as_json:
            tell_job(run)
        if not mode.confirmed and not agreed("Submit it?", yes=False, default=True):
            say("nothing was submitted")
            return EXIT_INTERRUPTED
        with progress_view(quiet=mode.as_json, notes=True) as view:
            job = submit(run, notify=view.notify)
        say(f"✓ run {run.plan.run_id} submitted to {run.carrier.name} as job {job}")
        if mode.detach:
            from orchestrator.cli.launching.supervise import tell_next

            if mode.as_json:
                write_json({"run_id": run.plan.run_id, "job": job})
            else:
                write_line(run.plan.run_id)
            tell_next(run.plan.run_id)
            return EXIT_OK
        return _follow(run.carrier, run.plan, mode, inventory.hooks)


@contextmanager
def ready_on(
    inventory: Inventory,
    options: LaunchOptions,
    mode: OutputMode,
    *,
    earlier: Plan | None = None,
    ending: bool = False,
) -> Iterator[ClusterRun]:
    """Yield the plan and the text of its job: all that precedes the first change on the cluster.

    `ending`: the earlier attempt is still active and will have been stopped.
    """
    cluster = inventory.cluster(options.on)
    prog = "orch resume" if options.resume else "orch launch"
    if wrong := [flag for name, flag in NOT_THERE.items() if name in options.given]:
        raise UsageError(
            f"{', '.join(wrong)}: not with --on, as the scheduler of {cluster.name} chooses the nodes at the start",
            hint=f"{prog} --on {cluster.name} --nodes 2 …   # more for its scheduler: `options:` of the cluster",
        )
    checked = must_run(prog, options)
    if code := own_code(options, earlier):
        may_be_copied(code, yes=mode.confirmed or mode.dry_run)
    request = replace(
        cluster_request(inventory, cluster, options, earlier, os.environ, notify=say),
        data_command=checked.needs,
        sizes=checked.sizes,
    )
    carrier = carrier_of(cluster)
    login = lone_login(carrier)
    try:
        facts = cluster_facts(login, cluster, request, assume=mode.dry_run)
        if not facts.home:
            say(f"note: {cluster.name} did not answer: its user id and home folder are assumed")
        if request.data_command:
            _require_data(facts, request.data_command, dry_run=mode.dry_run)
        if not mode.dry_run:
            require_values(request.secrets, request.environment, os.environ)
        identity = new_identity(options.name, earlier)
        if earlier and not ending:
            identity = replace(identity, attempt=_next(carrier, login, cluster, earlier, request))
        own = {node.name: replace(facts, name=node.name) for node in request.nodes}
        plan = plan_launch(request.at_port(port_of(identity.run_id)), own, identity)
        script = batch_script(plan, cluster)
        yield ClusterRun(carrier=carrier, login=login, request=request, plan=plan, script=script, code=code)
    finally:
        login.close()


def _require_data(facts: NodeFacts, command: str, *, dry_run: bool) -> None:
    """PreflightError: the shared storage does not hold the data that the command reads, and none is brought."""
    from orchestrator.cli.launching.view import tell_findings

    findings = tuple(data_missing([facts], command))
    tell_findings(findings)
    if findings and not dry_run:
        raise PreflightError("nothing was submitted", hint="bring prepared data: --data FOLDER")


def _next(carrier: SlurmCarrier, login: Node, cluster: ClusterSpec, earlier: Plan, request: LaunchRequest) -> int:
    """Number of the next attempt, once it is known that the earlier one is over and what it left."""
    known = carrier.runs(earlier.run_id, fresh=True)
    if known.silence:  # a job that runs is not shown then, and two write to the same checkpoints
        raise carrier.silent(known)
    attempt = next_attempt(known, earlier)
    newest = newest_anywhere([login], {login.name: cluster.folder}, earlier.run_id)
    if note := steps_lost(RunRecord(earlier.run_id), newest, request.command):
        say(f"note: {note}")
    return attempt


def earlier_on(inventory: Inventory, options: LaunchOptions) -> Plan | None:
    """The plan of the run to be resumed, if this computer has submitted it to a cluster. UsageError: `--on` for another
    run."""
    from orchestrator.store.run_names import resolve
    from orchestrator.store.run_record import known_records

    chosen = resolve(options.resume, known_records())
    plan = RunRecord(chosen).plan() if chosen else None
    if plan and plan.cluster:
        inventory.cluster(plan.cluster)  # refuse one that is gone
        return plan
    if options.on:
        raise UsageError(
            f"run {options.resume} is not a run of a cluster that this computer has submitted",
            hint=f"orch pull {options.resume}; orch launch --on {options.on} …; orch checkpoints push",
        )
    return None


def _follow(carrier: SlurmCarrier, plan: Plan, mode: OutputMode, hooks: HookSpec) -> int:
    """Follow a job to its end and return the exit code. Ctrl-C leaves it running."""
    from orchestrator.cli.launching.supervise import follow_to_end, tell_next
    from orchestrator.cli.launching.view import Screen
    from orchestrator.fleet.supervise.followed import FollowedRun
    from orchestrator.fleet.supervise.rendezvous import Arrivals

    followed = FollowedRun(RunRecord(plan.run_id))
    screen = Screen(plan, quiet=mode.as_json, on_machines=False)
    show = screen.showing(Arrivals({}, plan, followed.state))

    def follow(hear: Callable[[Update], None]) -> RunOutcome:
        callbacks = JobCallbacks(update=hear, waiting=lambda one: tell_queue(one, carrier), silent=report_error)
        with screen:
            return follow_job(carrier, plan, followed, callbacks)

    def leave() -> None:
        say(f"\nrun {plan.run_id} continues on {carrier.name} without you")
        tell_next(plan.run_id)

    return follow_to_end(follow, plan, followed, show, hooks, mode, leave=leave)


def tell_queue(attempt: CarriedAttempt, carrier: SlurmCarrier) -> None:
    """Say why a job waits, and what to do about a reason that does not pass by itself; or that it has begun."""
    if attempt.status == "queued":
        why = f" ({attempt.reason})" if attempt.reason not in ("", "None") else ""
        say(f"job {attempt.job} is queued{why}")
        meaning, command = queue_reason(attempt.reason)
        if meaning:
            look = carrier.on_login(command.replace("JOB", attempt.job))
            say(f"  {meaning}\n  → {look}\n  → orch stop {attempt.run_id}")
    elif attempt.status == "running" and not attempt.names:
        say(f"job {attempt.job} has started")
    elif attempt.names:
        say(f"attempt {attempt.attempt} of run {attempt.run_id} has {', '.join(attempt.names)}")


def tell_job(run: ClusterRun) -> None:
    """Print the plan before the question."""
    plan, cluster = run.plan, run.carrier.cluster
    words = [
        f"partition {cluster.partition}" if cluster.partition else "",
        f"time {cluster.time}" if cluster.time else "",
    ]
    gpus = f", {counted(cluster.gpus, 'GPU')}" if cluster.gpus else ""
    say(
        f"run {plan.run_id}: one job of {cluster.name} ({', '.join(filter(None, [*words, cluster.engine]))}):"
        f" {counted(plan.nnodes, 'node')}, {counted(plan.world_size, 'rank')}, {plan.backend};"
        f" each node {counted(cluster.cpus, 'core')}{gpus}"
    )
    for note in plan.notes:
        say(f"  note: {note}")
