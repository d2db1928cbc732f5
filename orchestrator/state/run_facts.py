"""Events of the follower of a run as facts about it."""

from __future__ import annotations

from orchestrator.specs.run_events import (
    ContainerExited,
    ContainerRemoved,
    LinesNotKept,
    NodeBack,
    NodeLost,
    RunEvent,
    RunLine,
)
from orchestrator.state.facts import (
    ContainerGone,
    ContainerSeen,
    Fact,
    LineRead,
    LinesNotStored,
    NodeAnswered,
    NodeUnanswered,
)


def fact_of(run_event: RunEvent, seen: float) -> Fact | None:
    """The fact that an event shows; None for one that shows none by itself, such as the passing of time."""
    match run_event:
        case RunLine():
            return LineRead(seen=seen, line=run_event)
        case ContainerExited():
            return ContainerSeen(seen=seen, node=run_event.node, facts=run_event.container)
        case ContainerRemoved():
            return ContainerGone(seen=seen, node=run_event.node)
        case NodeLost():
            return NodeUnanswered(seen=seen, node=run_event.node, error=run_event.error.message)
        case NodeBack():
            return NodeAnswered(seen=seen, node=run_event.node)
        case LinesNotKept():
            return LinesNotStored(seen=seen, reason=run_event.reason)
        case _:
            return None
