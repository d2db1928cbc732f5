"""The faults of a run and its recoveries, in order of time, in a line each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from contract.events import Event, RankFailed
from orchestrator.render.printable import printable
from orchestrator.render.recovery import agent_line
from orchestrator.state.run_state import NodeState, RunState

ENTRIES = 50
"""Newest entries that are shown."""
LONGEST = 2000
"""Characters of an entry: it may hold text of a rank."""


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """One thing that went wrong, or has recovered."""

    at: float
    """Seconds since 1970."""
    node: str
    text: str
    """Safe to show."""


def timeline_of(state: RunState) -> tuple[TimelineEntry, ...]:
    """The newest entries of a run, the newest last; one that is repeated, once."""
    found = [
        TimelineEntry(at=at, node=node.name, text=printable(text[:LONGEST]))
        for node in state.members
        for at, event in node.part.moments
        if (text := _text(event, node))
    ]
    ordered = sorted(found, key=lambda one: one.at)
    news = [one for before, one in pairwise([None, *ordered]) if one and (before is None or one.text != before.text)]
    return tuple(news[-ENTRIES:])


def _text(event: Event, node: NodeState) -> str:
    if isinstance(event, RankFailed):
        return f"rank {event.rank} on {node.name}: {event.reason}"
    line = agent_line(event, node.name, node.node_rank or 0)
    return line.partition("\n")[0][2:]
