"""A run that passes: it starts, says what it found, and leaves nothing on the nodes, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contract.events import Event
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.stop import remove_run
from orchestrator.fleet.supervise.attempt import attend
from orchestrator.fleet.supervise.attempt_state import RunOutcome
from orchestrator.nodes.interface import Node
from orchestrator.plan.recovery import Told
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run_events import RunEvent, RunLine

CLEAR_S = 15.0
"""For a node to be rid of it all; one that is cut off is told of, not waited for."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What it came to."""

    outcome: RunOutcome
    told: tuple[Event, ...]
    """Rank 0's last event of each kind."""


@dataclass(frozen=True, kw_only=True)
class Ears:
    """Who is told of what goes on."""

    step: Callable[[str, str], None] = lambda _node, _step: None
    """Of (node, what was done there)."""
    happening: Callable[[RunEvent], None] = lambda _happening: None
    """Of everything that the ranks say and do. What it raises ends the errand."""
    left_behind: Callable[[OrchError], object] = lambda _error: None
    """Of a node that could not be rid of it."""


def run_errand(nodes: Mapping[str, Node], plan: Plan, request: LaunchRequest, ears: Ears) -> Errand:
    """Start the plan, follow it to its end, and clear it away; the controller's record stays."""
    seated = launch(nodes, plan, fresh=request.folders, on_step=ears.step)
    record, told = RunRecord(plan.run_id), dict[type[Event], Event]()

    def hear(happening: Told) -> None:
        if not isinstance(happening, RunEvent):
            return  # an errand is not gone on with: there is nothing to decide
        event = happening.event if isinstance(happening, RunLine) else None
        if event and event.rank == 0:
            told[type(event)] = event
        ears.happening(happening)

    try:
        return Errand(outcome=attend(seated, plan, record, on=hear), told=tuple(told.values()))
    except BaseException as error:  # Ctrl-C too
        record.save_outcome("stopped", str(error))
        raise
    finally:
        for cleared in remove_run(seated, plan, timeout_s=CLEAR_S):
            if cleared.error:
                ears.left_behind(cleared.error)
