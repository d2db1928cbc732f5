"""What happens in a run, as a follower sees it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.specs.errors import OrchError
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
class Tick:
    """Nothing happened for a while: time to look at the clock."""


Happening = Said | Ended | Lost | Tick
