"""A cluster as the place where a run starts: planned without its nodes, and submitted as one job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from orchestrator.checks.consistency import data_missing
from orchestrator.cli.launching.following import Attended
from orchestrator.cli.launching.order import LaunchOrder
from orchestrator.cli.launching.own_code import OwnCode
from orchestrator.cli.report import progress_view, report_error, say, say_once, write_document, write_json
from orchestrator.fleet.checkpoints.newest import newest_anywhere, steps_lost
from orchestrator.fleet.connect import carrier_of
from orchestrator.fleet.planning.cluster import cluster_facts, cluster_request
from orchestrator.fleet.planning.look_ahead import CheckedWords
from orchestrator.fleet.planning.request import new_identity
from orchestrator.fleet.runs.submit import Job, next_attempt, submit
from orchestrator.fleet.supervise.attempt import Callbacks
from orchestrator.fleet.supervise.job import follow_job
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
from orchestrator.specs.errors import PreflightError, UsageError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_data
from orchestrator.specs.request import LaunchRequest
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord

NOT_THERE = {
    "master": "--master", "shard": "--shard", "fetch_once": "--fetch-once",
    "min_nodes": "--min-nodes", "engine": "--engine", "profile": "--profile",
}  # fmt: skip
"""Options of a launch that a scheduler decides on, or that need each node before the start."""


class ClusterEngine:
    """A cluster of the inventory."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self._cluster = cluster

    def settled(self, order: LaunchOrder) -> LaunchOrder:
        name = self._cluster.name
        if order.mode.forecast:
            raise UsageError(
                "--forecast measures nodes, and a cluster has none before the job starts",
                hint=f"orch launch --on {name} --nodes 2 -- gpt2 --forecast",
            )
        if wrong := [flag for field, flag in NOT_THERE.items() if field in order.options.given]:
            raise UsageError(
                f"{', '.join(wrong)}: not with --on, as the scheduler of {name} chooses the nodes at the start",
                hint=f"{order.prog} --on {name} --nodes 2 …   # more for its scheduler: `options:` of the cluster",
            )
        if order.options.checkpoint:
            raise UsageError(
                f"--checkpoint: a job of {name} resumes from the newest checkpoint that it finds when it starts",
                hint=f"orch resume {order.options.resume}",
            )
        return order

    def request(self, order: LaunchOrder, _checked: CheckedWords, _code: OwnCode | None) -> LaunchRequest:
        return cluster_request(
            order.inventory, self._cluster, order.options, order.earlier, os.environ, notify=say_once
        )

    @contextmanager
    def planned(self, order: LaunchOrder, request: LaunchRequest) -> Iterator[ClusterRun]:
        """Ask the login node, and plan for nodes that are alike."""
        cluster, mode, earlier = self._cluster, order.mode, order.earlier
        carrier = carrier_of(cluster)
        login = lone_login(carrier)
        try:
            facts = cluster_facts(login, cluster, request, assume=mode.dry_run)
            if not facts.home:
                say(f"note: {cluster.name} did not answer: its user id and home folder are assumed")
            if request.data_command:
                _require_data(facts, request.data_command, dry_run=mode.dry_run)
            identity = new_identity(order.options.name, earlier)
            if earlier and not order.ending:
                identity = replace(identity, attempt=_next(carrier, login, cluster, earlier, request))
            own = {node.name: replace(facts, name=node.name) for node in request.nodes}
            plan = plan_launch(request.at_port(port_of(identity.run_id)), own, identity)
            script = batch_script(plan, cluster)
            yield ClusterRun(order=order, carrier=carrier, login=login, request=request, plan=plan, script=script)
        finally:
            login.close()


@dataclass(frozen=True, kw_only=True)
class ClusterRun(Job):
    """A run that is ready to be submitted."""

    order: LaunchOrder

    question = "Submit it?", True

    def write(self) -> None:
        """Write the script of the job, or the plan with it."""
        if self.order.mode.as_json:
            write_json({**to_data(self.plan), "script": self.script})
        else:
            write_document(self.script)

    def show(self, *, asking: bool) -> None:
        """Print the size of the job, and what is to be known of the plan."""
        if self.order.mode.as_json and not asking:
            return
        plan, cluster = self.plan, self.carrier.cluster
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

    def start(self) -> Attended:
        """Submit the job."""
        from orchestrator.cli.launching.view import Screen
        from orchestrator.fleet.supervise.followed import FollowedRun
        from orchestrator.fleet.supervise.rendezvous import Arrivals

        plan, carrier, quiet = self.plan, self.carrier, self.order.mode.as_json
        with progress_view(quiet=quiet, notes=True) as view:
            job = submit(self, notify=view.notify)
        say(f"✓ run {plan.run_id} submitted to {carrier.name} as job {job}")
        followed = FollowedRun(RunRecord(plan.run_id))
        screen = Screen(plan, quiet=quiet)

        def follow(hear: Callable[[Update], None]) -> RunOutcome:
            callbacks = Callbacks(update=hear, waiting=lambda one: tell_queue(one, carrier), failed=report_error)
            return follow_job(carrier, plan, followed, callbacks)

        return Attended(
            plan=plan,
            followed=followed,
            follow=follow,
            hear=screen.showing(Arrivals({}, plan, followed.state)),
            screen=screen,
            hooks=self.order.inventory.hooks,
            job=job,
        )


def _require_data(facts: NodeFacts, command: str, *, dry_run: bool) -> None:
    """PreflightError: the shared storage does not hold the data that the command reads, and none is brought."""
    from orchestrator.cli.launching.view import tell_findings

    findings = tuple(data_missing([facts], command))
    tell_findings(findings)
    if findings and not dry_run:
        raise PreflightError("nothing was started", hint="bring prepared data: --data FOLDER")


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
