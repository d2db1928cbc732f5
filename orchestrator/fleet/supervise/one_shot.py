"""A temporary run: it starts, reports its result, and leaves nothing on the nodes, however it ends."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.fleet.fan_out import Notify
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.stop import remove_run
from orchestrator.fleet.runs.submit import Job, submit
from orchestrator.fleet.supervise.attempt import follow_attempt
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.job import JobCallbacks, follow_job
from orchestrator.fleet.supervise.run_outcome import RunOutcome
from orchestrator.nodes.carrier import CarriedAttempt
from orchestrator.nodes.interface import Node
from orchestrator.plan.sbatch import run_folder
from orchestrator.specs.errors import EngineError, OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run_events import RunEvent
from orchestrator.state.recovery import Update
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord

CLEAR_S = 15.0
"""Seconds for the cleanup of a node; one that is cut off is reported, not waited for."""


@dataclass(frozen=True, kw_only=True)
class OneShotResult:
    """Outcome of a temporary run."""

    outcome: RunOutcome
    state: RunState


@dataclass(frozen=True, kw_only=True)
class OneShotCallbacks:
    """Called during a temporary run."""

    notify: Notify = lambda _node, _progress: None
    """Receives each step on a node, and the progress of copies to it."""
    update: Callable[[Update], None] = lambda _update: None
    """Receives every event, and the plan of each attempt of a job. An exception that it raises ends the run."""
    left_behind: Callable[[OrchError], object] = lambda _error: None
    """Receives the error of a node that could not be cleaned up."""
    silent: Callable[[OrchError], object] = lambda _error: None
    """Receives the error of a login node that does not answer, once for each silence."""


def run_one_shot(
    nodes: Mapping[str, Node],
    plan: Plan,
    request: LaunchRequest,
    callbacks: OneShotCallbacks,
    followed: FollowedRun | None = None,
) -> OneShotResult:
    """Start the plan, follow it to its end, and remove it from the nodes; the controller's record stays."""
    containers = launch(nodes, plan, fresh=request.folders, notify=callbacks.notify)
    followed = followed or FollowedRun(RunRecord(plan.run_id))

    def pass_on(update: Update) -> None:
        if isinstance(update, RunEvent):  # a temporary run has no next attempt: decisions are ignored
            callbacks.update(update)

    try:
        with _recorded(followed.record):
            outcome = follow_attempt(containers, plan, followed, on=pass_on)
            return OneShotResult(outcome=outcome, state=followed.state)
    finally:
        for cleared in remove_run(containers, plan, timeout_s=CLEAR_S):
            if cleared.error:
                callbacks.left_behind(cleared.error)


def run_one_shot_job(
    job: Job,
    callbacks: OneShotCallbacks,
    *,
    waiting: Callable[[CarriedAttempt], None],
    wait_s: float,
    followed: FollowedRun | None = None,
) -> OneShotResult:
    """Submit the job, follow it to its end, and remove it from the cluster; the controller's record stays.

    `waiting`: receives each change of its place in the queue. DeadlineError: it has not started within `wait_s`.
    """
    carrier, plan, number = job.carrier, job.plan, ""
    followed = followed or FollowedRun(RunRecord(plan.run_id))
    follow = JobCallbacks(update=callbacks.update, waiting=waiting, silent=callbacks.silent)
    carrier.claim(plan.run_id)
    try:
        number = submit(job, notify=callbacks.notify)
        with _recorded(followed.record):
            outcome = follow_job(carrier, plan, followed, follow, wait_s=wait_s)
            return OneShotResult(outcome=outcome, state=followed.state)
    finally:
        _clear(job, number, callbacks.left_behind)


def _clear(job: Job, number: str, left_behind: Callable[[OrchError], object]) -> None:
    """Remove the run from the cluster, or tell what may be left of it."""
    carrier, plan = job.carrier, job.plan
    try:
        carrier.remove(plan.run_id, number)
    except BaseException as error:  # Ctrl-C too
        why = error.message if isinstance(error, OrchError) else "interrupted"
        what, cancel = (f"job {number} and ", f"scancel {number}; ") if number else ("", "")
        hint = carrier.on_login(f"{cancel}rm -r {shlex.quote(run_folder(plan))}")
        text = f"removing run {plan.run_id}: {why}; {what}its folder may be left"
        left_behind(EngineError(text, node=carrier.name, hint=hint))
        if not isinstance(error, OrchError):
            raise


@contextmanager
def _recorded(record: RunRecord) -> Iterator[None]:
    """Record a run that is broken off as stopped."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        record.save_outcome("stopped", str(error))
        raise
