"""What happens in a run, as a follower sees it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts


@dataclass(frozen=True, kw_only=True)
class Said:
    """One line of one container, as merged and kept."""

    time: str
    node: str
    node_rank: int
    rank: int | None
    """Global rank; None for a line of torchrun's own agent."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A container has ended."""

    node: str
    node_rank: int
    container: ContainerFacts


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A node does not answer any more."""

    node: str
    node_rank: int
    error: OrchError


@dataclass(frozen=True, kw_only=True)
class Back:
    """A node that was lost, or given up, answers again."""

    node: str
    node_rank: int | None = None
    """None where it has no part in the run as it is planned now."""
    container: str = ""
    """Its container of the run; empty where it has none."""


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A node answers, and holds no container of the run any more: somebody took it away."""

    node: str
    node_rank: int


@dataclass(frozen=True, kw_only=True)
class Replanned:
    """The run goes on by another plan, as its next attempt."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Unkept:
    """What is followed is not written down on this computer any more, or not all of it: told once."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Nothing happened for a while: time to look at the clock."""


Happening = Said | Ended | Lost | Back | Removed | Replanned | Unkept | Tick
