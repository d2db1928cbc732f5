"""Follow a run on a cluster: its place in the queue, then its attempts, until the scheduler starts no other one.

The scheduler restarts nodes and the agents restart ranks. Following decides nothing: it may end at any time.
"""

from __future__ import annotations

from contextlib import closing, suppress

from orchestrator.fleet.connect import cluster_nodes, note_place
from orchestrator.fleet.runs.code_files import is_folder
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.supervise.attempt import Callbacks
from orchestrator.fleet.supervise.follow import Follower
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.nodes.carrier import Carried, CarriedAttempt
from orchestrator.nodes.cluster_nodes import node_name
from orchestrator.nodes.slurm import SlurmCarrier
from orchestrator.specs.errors import OrchError, PreflightError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import ContainerExited, Replanned
from orchestrator.state.recovery import End
from orchestrator.state.run_outcome import RunOutcome, outcome_of
from orchestrator.store.secret_values import veil_of

LOOK_EVERY_S = 2.0


def follow_job(carrier: SlurmCarrier, plan: Plan, followed: FollowedRun, callbacks: Callbacks) -> RunOutcome:
    """Follow until the last attempt has ended, and record the outcome. PreflightError: the run was forgotten."""
    record, done = followed.record, -1
    record.veil = veil_of(plan)
    while True:
        attempt = _begun(carrier, plan, callbacks, after=done)
        plan = note_place(record, plan, attempt)
        callbacks.update(Replanned(plan=plan))
        outcome = _follow_attempt(carrier, plan, attempt, followed, callbacks)
        done = attempt.attempt
        newest = _known(carrier, plan, callbacks).newest(plan.run_id)
        if newest is None or newest.attempt <= done:
            if plan.secrets and newest and newest.is_over:  # a batch script that was killed has left them
                with suppress(OrchError):
                    carrier.drop_secrets(plan.run_id)
            with suppress(OSError):  # a full disk was reported when the lines did not fit
                record.save_outcome(outcome.phase.value, outcome.failure.reason if outcome.failure else "")
            return outcome


def _begun(carrier: SlurmCarrier, plan: Plan, callbacks: Callbacks, *, after: int) -> CarriedAttempt:
    """The first attempt after that one that has nodes, or that is over without any."""
    last = ("", "")
    while True:
        found = _known(carrier, plan, callbacks)
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
        carrier.rest(LOOK_EVERY_S)


def _known(carrier: SlurmCarrier, plan: Plan, callbacks: Callbacks) -> Carried:
    """The run's attempts, once the login node and its scheduler answer."""
    quiet = False
    while True:
        try:
            found = carrier.runs(plan.run_id, fresh=True)
            if not found.silence:
                return found
            raise carrier.silent(found)
        except OrchError as error:
            if not quiet:
                callbacks.failed(error)
            quiet = True
        carrier.rest(LOOK_EVERY_S)


def _follow_attempt(
    carrier: SlurmCarrier, plan: Plan, attempt: CarriedAttempt, followed: FollowedRun, callbacks: Callbacks
) -> RunOutcome:
    nodes = {node.name: node for node in cluster_nodes(carrier, run=plan.run_id)}
    follower = Follower(followed.record, followed.record.recorder(), patient=True, from_record=True)
    containers, ended = list[RunningContainer](), list[str]()
    for rank in range(attempt.nnodes):
        name = node_name(carrier.name, attempt, rank)
        containers.append(RunningContainer.of(nodes[name], rank, attempt.container(rank)))
    followed.begin(plan, containers)
    for container in containers:
        follower.add(container, since=followed.record.last_time(container.node.name, container.id))
    with closing(follower):
        for run_event in follower.run_events():
            followed.take(run_event)
            callbacks.update(run_event)
            if isinstance(run_event, ContainerExited):
                ended.append(run_event.node)
    return outcome_of(followed.state, plan, End(), ended, is_folder)
