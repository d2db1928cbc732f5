"""A temporary run: it starts, reports its result, and leaves nothing on the nodes, however it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.stop import remove_run
from orchestrator.fleet.supervise.attempt import Callbacks, follow_attempt
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.nodes.interface import Node
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run_events import RunEvent
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord

CLEAR_S = 15.0
"""Seconds for the cleanup of a node; one that is cut off is reported, not waited for."""


def run_one_shot(
    nodes: Mapping[str, Node],
    plan: Plan,
    request: LaunchRequest,
    callbacks: Callbacks,
    followed: FollowedRun | None = None,
) -> RunOutcome:
    """Start the plan, follow it to its end, and remove it from the nodes; the controller's record stays."""
    containers = launch(nodes, plan, fresh=request.folders, notify=callbacks.notify)
    followed = followed or FollowedRun(RunRecord(plan.run_id))

    def pass_on(update: Update) -> None:
        if isinstance(update, RunEvent):  # a temporary run has no next attempt: decisions are ignored
            callbacks.update(update)

    try:
        with _recorded(followed.record):
            return follow_attempt(containers, plan, followed, on=pass_on)
    finally:
        for cleared in remove_run(containers, plan, timeout_s=CLEAR_S):
            if cleared.error:
                callbacks.failed(cleared.error)


@contextmanager
def _recorded(record: RunRecord) -> Iterator[None]:
    """Record a run that is broken off as stopped."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        record.save_outcome("stopped", str(error))
        raise
