"""Decisions for a run after a fault, and reports of its supervisors, in a line each."""

from __future__ import annotations

from contract.events import Event, Hung, NodesEvent, NodesRecovered, NodesStalled, Restarting, WaitingForNodes
from orchestrator.plan.recovery import AddNodes, GiveUp, NoNodeAnswers, Replan, StartContainer, StopOthers, Update
from orchestrator.specs.run_events import ContainerRemoved, LinesNotKept, NodeBack, NodeLost, Replanned, RunLine

WORTH_A_LINE_S = 60
"""Without progress: a shorter pause is an evaluation, or a script that writes now and then."""


def recovery_line(told: Update) -> str:
    """Empty where it is none of this."""
    if isinstance(told, RunLine):
        return _of_agent(told.event, told)
    if isinstance(told, NodeLost):
        return f"! {told.node} does not answer any more: {told.error.message}"
    if isinstance(told, NodeBack):
        return f"· {told.node} answers again"
    if isinstance(told, ContainerRemoved):
        return f"! {told.node}: somebody removed its container"
    if isinstance(told, Replanned):
        plan = told.plan
        names = ", ".join(part.node for part in plan.nodes)
        return f"✓ continues as attempt {plan.attempt} on {names}; master {plan.master}"
    if isinstance(told, LinesNotKept):
        return f"! {told.reason}; the run continues, and is followed as before"
    return _of_decision(told)


def _of_decision(told: Update) -> str:
    if isinstance(told, StartContainer):
        return f"→ the container on {told.node} was killed: starting it again"
    if isinstance(told, StopOthers) and told.nodes:
        return f"→ stopping {', '.join(told.nodes)}"
    if isinstance(told, GiveUp):
        return f"✗ {', '.join(told.nodes)} gone for {told.seconds:.0f} s: stopping the run"
    if isinstance(told, Replan):
        return f"→ {', '.join(told.without)} given up: continuing with {', '.join(told.left)}"
    if isinstance(told, AddNodes):
        return f"→ {', '.join(told.nodes)} back and fit: added after this checkpoint"
    if isinstance(told, NoNodeAnswers):
        return f"! no node has answered for {told.seconds:.0f} s"
    return ""


def _of_agent(event: Event | None, line: RunLine) -> str:
    """Rank 0's agent reports for all. A stop is reported by the command that stops."""
    if isinstance(event, Restarting) and line.node_rank == 0 and event.outcome != "stopped":
        rank = f"rank {event.rank} on " if event.rank is not None else ""
        left = -1 if event.restarts_left is None else event.restarts_left
        more = f" ({left} more times at most)" if left >= 0 else ""
        return f"! {rank}{event.node or '?'}: {event.reason or ''}; all start again{more}"
    if isinstance(event, Hung) and (event.seconds or 0) >= WORTH_A_LINE_S:
        return f"! no progress on {line.node} for {event.seconds:.0f} s; position of each rank: orch why"
    if not isinstance(event, NodesEvent):
        return ""
    names = "?" if event.nodes is None else ", ".join(event.nodes)
    seconds = "?" if event.seconds is None else f"{event.seconds}"
    if isinstance(event, NodesStalled):
        return f"! no word from {names} for {seconds} s"
    if isinstance(event, NodesRecovered):
        return f"· {names} heard again"
    return f"… waiting for {names} ({seconds} s)" if isinstance(event, WaitingForNodes) else ""
