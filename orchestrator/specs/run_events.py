"""Events of a run, as its follower receives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from contract.event_lines import decode_event
from contract.events import Event
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One line of one container, without its rank prefix."""

    time: str
    node: str
    node_rank: int
    rank: int | None
    """Global rank; None for a line of an agent or of torchrun."""
    text: str
    container: str = field(default="", compare=False)
    """Id of its container, of which a record has the first characters; empty: not known."""
    attempt: int | None = field(default=None, compare=False)
    """Attempt by the label of its container; None: not known."""

    @cached_property
    def event(self) -> Event | None:
        """The event that the line holds, decoded once; None for an ordinary line."""
        return decode_event(self.text, self.rank)

    def values(self) -> dict[str, Any]:
        """The fields, as a record has them: its file is named after the container."""
        return {name: getattr(self, name) for name in ("time", "node", "node_rank", "rank", "text")}


@dataclass(frozen=True, kw_only=True)
class ContainerExited:
    node: str
    node_rank: int
    container: ContainerFacts


@dataclass(frozen=True, kw_only=True)
class NodeLost:
    """The node does not answer."""

    node: str
    node_rank: int
    error: OrchError


@dataclass(frozen=True, kw_only=True)
class NodeBack:
    """A lost or replaced node answers again."""

    node: str
    node_rank: int | None = None
    """None where the current plan does not include the node."""
    container: str = ""
    """Its container of the run; empty where it has none."""


@dataclass(frozen=True, kw_only=True)
class ContainerRemoved:
    """The node answers, and has no container of the run any more."""

    node: str
    node_rank: int
    is_requested: bool = False
    """True if a request to stop the run was on record."""


@dataclass(frozen=True, kw_only=True)
class Replanned:
    """The run continues with another plan, as its next attempt."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class LinesNotKept:
    """Report that from now on lines are not stored completely on this computer."""

    reason: str
    """Reason; empty: they are stored again."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time has passed without an event."""


RunEvent = RunLine | ContainerExited | NodeLost | NodeBack | ContainerRemoved | Replanned | LinesNotKept | Tick
