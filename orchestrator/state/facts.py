"""Facts about a run, the only input of its state. `seen` is the time at which this computer learned of one, in seconds
since 1970 by a clock that never jumps: a fact that is stored decides the same when it is read again."""

from __future__ import annotations

from dataclasses import dataclass

from contract.cost_model.forecast import Forecast
from contract.resources import ResourceUsage
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts, Run
from orchestrator.specs.run_events import (
    ContainerExited,
    ContainerRemoved,
    LinesNotKept,
    NodeBack,
    NodeLost,
    RunEvent,
    RunLine,
)
from orchestrator.state.journal import Journal
from orchestrator.state.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class LineRead:
    """A line of a container of the run."""

    seen: float
    line: RunLine
    """Line that counts for the current attempt if its container and attempt are missing."""


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """The run as the containers on the nodes show it."""

    seen: float
    run: Run | None
    """None: no node that answered has a container of it."""
    unreachable: tuple[str, ...] = ()
    """Nodes that did not answer."""


@dataclass(frozen=True, kw_only=True)
class ContainerSeen:
    """The container of the current attempt on a node, after a change: it has started, ended, or was removed."""

    seen: float
    node: str
    facts: ContainerFacts | None
    """None: the node answers, and has no container of the run any more."""


@dataclass(frozen=True, kw_only=True)
class NodeAnswered:
    """The node has answered."""

    seen: float
    node: str
    usage: ResourceUsage | None = None
    """Resources in use; None: the answer does not hold them."""


@dataclass(frozen=True, kw_only=True)
class NodeUnanswered:
    """The node does not answer, or refuses."""

    seen: float
    node: str
    error: str


@dataclass(frozen=True, kw_only=True)
class JournalRead:
    """The record of the run on this computer. It is read before lines and containers of the attempts that it has."""

    seen: float
    journal: Journal
    plan: Plan | None = None
    """Plan of its current attempt."""
    forecast: Forecast | None = None
    """The forecast on record."""


@dataclass(frozen=True, kw_only=True)
class SupervisorSought:
    """This computer was searched for a supervisor of the run."""

    seen: float
    found: bool | None
    """None: it is not known, such as of a run of another computer."""


@dataclass(frozen=True, kw_only=True)
class LinesNotStored:
    """Report that from now on lines are not stored completely on this computer."""

    seen: float
    reason: str


Fact = (
    LineRead | RunSeen | ContainerSeen | NodeAnswered | NodeUnanswered | JournalRead | SupervisorSought | LinesNotStored
)


@dataclass(frozen=True, kw_only=True)
class RunFound:
    """The run that is watched from now on, as far as it is known."""

    state: RunState | None = None
    """None: there is no run."""
    unreachable: tuple[str, ...] = ()
    """Nodes that did not answer when they were asked for runs."""


def fact_of(run_event: RunEvent, seen: float) -> Fact | None:
    """The fact that an event shows; None for one that shows none by itself, such as the passing of time."""
    match run_event:
        case RunLine():
            return LineRead(seen=seen, line=run_event)
        case ContainerExited():
            return ContainerSeen(seen=seen, node=run_event.node, facts=run_event.container)
        case ContainerRemoved():
            return ContainerSeen(seen=seen, node=run_event.node, facts=None)
        case NodeLost():
            return NodeUnanswered(seen=seen, node=run_event.node, error=run_event.error.message)
        case NodeBack():
            return NodeAnswered(seen=seen, node=run_event.node)
        case LinesNotKept():
            return LinesNotStored(seen=seen, reason=run_event.reason)
        case _:
            return None
