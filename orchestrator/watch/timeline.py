"""The faults of a run and its recoveries, in order of time, in a line each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from contract.events import (
    DataDamaged,
    Event,
    LivenessReported,
    NodesEvent,
    NodesRecovered,
    NodesStalled,
    OutputsEvent,
    RankFailed,
    Restarting,
    WaitingForNodes,
)
from orchestrator.render.printable import printable
from orchestrator.render.recovery import outputs_lines
from orchestrator.specs.data import damage_text
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


def agent_line(event: Event | None, node: str, node_rank: int) -> str:
    """The line for an event of the agent on a node: rank 0's agent reports for all. A stop is reported by the command
    that stops."""
    if isinstance(event, Restarting) and node_rank == 0 and event.outcome != "stopped":
        rank = f"rank {event.rank} on " if event.rank is not None else ""
        left = -1 if event.restarts_left is None else event.restarts_left
        more = f" (restarts left: {left})" if left >= 0 else ""
        return f"! {rank}{event.node or '?'}: {event.reason or ''}; restarting all ranks{more}"
    if isinstance(event, LivenessReported) and node_rank == 0:
        return printable(event.message)
    if isinstance(event, DataDamaged):
        return f"! data on {node}: {damage_text(event.file or '', event.wrong or '', event.offset or 0)}"
    if isinstance(event, OutputsEvent):
        return outputs_lines(event, node)
    if not isinstance(event, NodesEvent):
        return ""
    names = "?" if event.nodes is None else ", ".join(event.nodes)
    seconds = "?" if event.seconds is None else f"{event.seconds}"
    if isinstance(event, NodesStalled):
        return f"! no heartbeat from {names} for {seconds} s"
    if isinstance(event, NodesRecovered):
        return f"· heartbeats of {names} are back"
    return f"… waiting for {names} ({seconds} s)" if isinstance(event, WaitingForNodes) else ""
