"""A temporary run: it starts, reports its result, and leaves nothing on the nodes, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contract.events import Event
from orchestrator.fleet.fan_out import Notify
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.stop import remove_run
from orchestrator.fleet.supervise.attempt import follow_attempt
from orchestrator.fleet.supervise.attempt_state import RunOutcome
from orchestrator.nodes.interface import Node
from orchestrator.plan.recovery import Update
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run_events import RunEvent, RunLine

CLEAR_S = 15.0
"""Seconds for the cleanup of a node; one that is cut off is reported, not waited for."""


@dataclass(frozen=True, kw_only=True)
class OneShotResult:
    """Outcome of a temporary run."""

    outcome: RunOutcome
    events: tuple[Event, ...]
    """The last event of each kind of rank 0."""


@dataclass(frozen=True, kw_only=True)
class OneShotCallbacks:
    """Called during a temporary run."""

    notify: Notify = lambda _node, _progress: None
    """Receives each step on a node, and the progress of copies to it."""
    run_event: Callable[[RunEvent], None] = lambda _happening: None
    """Receives every event. An exception that it raises ends the run."""
    left_behind: Callable[[OrchError], object] = lambda _error: None
    """Receives the error of a node that could not be cleaned up."""


def run_one_shot(
    nodes: Mapping[str, Node], plan: Plan, request: LaunchRequest, callbacks: OneShotCallbacks
) -> OneShotResult:
    """Start the plan, follow it to its end, and remove it from the nodes; the controller's record stays."""
    containers = launch(nodes, plan, fresh=request.folders, notify=callbacks.notify)
    record, newest = RunRecord(plan.run_id), dict[type[Event], Event]()

    def hear(run_event: Update) -> None:
        if not isinstance(run_event, RunEvent):
            return  # a temporary run has no next attempt: decisions are ignored
        event = run_event.event if isinstance(run_event, RunLine) else None
        if event and event.rank == 0:
            newest[type(event)] = event
        callbacks.run_event(run_event)

    try:
        return OneShotResult(outcome=follow_attempt(containers, plan, record, on=hear), events=tuple(newest.values()))
    except BaseException as error:  # Ctrl-C too
        record.save_outcome("stopped", str(error))
        raise
    finally:
        for cleared in remove_run(containers, plan, timeout_s=CLEAR_S):
            if cleared.error:
                callbacks.left_behind(cleared.error)
