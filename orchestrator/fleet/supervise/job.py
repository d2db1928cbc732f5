"""Follow a run on a cluster: its place in the queue, then its attempts, until the scheduler starts no other one.

The scheduler restarts nodes and the agents restart ranks. Following decides nothing: it may end at any time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.fleet.connect import cluster_nodes
from orchestrator.fleet.runs.bind import note_place
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import veil_of
from orchestrator.fleet.supervise.attempt_state import AttemptReport, RunOutcome
from orchestrator.fleet.supervise.follow import Follower
from orchestrator.nodes.carrier import Carried, CarriedAttempt
from orchestrator.nodes.cluster_nodes import node_name
from orchestrator.nodes.slurm import SILENT_S, SlurmCarrier
from orchestrator.plan.recovery import End, Update
from orchestrator.specs.errors import OrchError, PreflightError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import ContainerExited, NodeLost, Replanned, RunLine

LOOK_EVERY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class JobCallbacks:
    """Called while a job is followed."""

    update: Callable[[Update], None] = lambda _update: None
    waiting: Callable[[CarriedAttempt], None] = lambda _attempt: None
    """Receives the attempt whenever its place in the queue has changed, and once it has left it."""
    silent: Callable[[OrchError], object] = lambda _error: None
    """Receives the error of a login node that does not answer, once for each silence."""


def follow_job(
    carrier: SlurmCarrier, plan: Plan, record: RunRecord, callbacks: JobCallbacks, *, wait_s: float = math.inf
) -> RunOutcome:
    """Follow until the last attempt has ended, and record the outcome.

    PreflightError: the run was forgotten; DeadlineError: an attempt has waited longer than `wait_s` in the queue.
    With a finite `wait_s`, a cluster that is silent for `SILENT_S` while a job is waited for ends it with that error.
    """
    record.veil = veil_of(plan)
    done = -1
    while True:
        attempt = _begun(carrier, plan, callbacks, after=done, wait_s=wait_s)
        plan = note_place(record, plan, attempt)
        callbacks.update(Replanned(plan=plan))
        outcome = _follow_attempt(carrier, plan, attempt, record, callbacks)
        done = attempt.attempt
        newest = _known(carrier, plan, callbacks).newest(plan.run_id)
        if newest is None or newest.attempt <= done:
            if plan.secrets and newest and newest.is_over:  # a batch script that was killed has left them
                with suppress(OrchError):
                    carrier.drop_secrets(plan.run_id)
            with suppress(OSError):  # a full disk was reported when the lines did not fit
                record.save_outcome(outcome.word, outcome.failure.reason if outcome.failure else "")
            return outcome


def _begun(carrier: SlurmCarrier, plan: Plan, callbacks: JobCallbacks, *, after: int, wait_s: float) -> CarriedAttempt:
    """The first attempt after that one that has nodes, or that is over without any."""
    last, began = ("", ""), time.monotonic()
    while True:
        found = _known(carrier, plan, callbacks, patience_s=math.inf if math.isinf(wait_s) else SILENT_S)
        newer = [one for one in found.attempts if one.run_id == plan.run_id and one.attempt > after]
        known = min(newer, key=lambda one: one.attempt, default=None) or found.newest(plan.run_id)
        if known is None:
            raise PreflightError(
                f"the folder of run {plan.run_id} does not show its job any more",
                node=carrier.name,
                hint=f"orch logs {plan.run_id}; orch resume {plan.run_id}",
            )
        if (known.status, known.reason) != last:
            last = known.status, known.reason
            callbacks.waiting(known)
        if known.names or known.is_over:
            return known
        if known.status == "queued" and time.monotonic() - began >= wait_s:
            raise carrier.late(known.job, wait_s, known.reason)
        carrier.rest(LOOK_EVERY_S)


def _known(carrier: SlurmCarrier, plan: Plan, callbacks: JobCallbacks, *, patience_s: float = math.inf) -> Carried:
    """The run's attempts, once the login node and its scheduler answer; their error if they do not for so long."""
    quiet, began = False, time.monotonic()
    while True:
        try:
            found = carrier.runs(plan.run_id, fresh=True)
            if not found.silence:
                return found
            raise carrier.silent(found)
        except OrchError as error:
            if time.monotonic() - began >= patience_s:
                raise
            if not quiet:
                callbacks.silent(error)
            quiet = True
        carrier.rest(LOOK_EVERY_S)


def _follow_attempt(
    carrier: SlurmCarrier, plan: Plan, attempt: CarriedAttempt, record: RunRecord, callbacks: JobCallbacks
) -> RunOutcome:
    nodes = {node.name: node for node in cluster_nodes(carrier, run=plan.run_id)}
    follower = Follower(record, patient=True, from_record=True)
    report = AttemptReport(plan=plan, record=record)
    for rank in range(attempt.nnodes):
        name = node_name(carrier.name, attempt, rank)
        facts = attempt.container(rank)
        container = RunningContainer.of(nodes[name], rank, facts)
        follower.add(container, since=record.last_time(name, facts.id))
    for run_event in follower.run_events():
        callbacks.update(run_event)
        if isinstance(run_event, RunLine):
            report.add_line(run_event)
        elif isinstance(run_event, ContainerExited):
            report.lost.pop(run_event.node, None)
            report.add_end(run_event)
        elif isinstance(run_event, NodeLost):
            report.lost[run_event.node] = run_event.error.message
    return report.outcome(End(), stop_requested=record.is_stopping())
