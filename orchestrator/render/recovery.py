"""Decisions for a run after a fault, and reports of its supervisors, in a line each."""

from __future__ import annotations

from contract.events import (
    Event,
    LivenessReported,
    NodesEvent,
    NodesRecovered,
    NodesStalled,
    OutputsEvent,
    Restarting,
    WaitingForNodes,
)
from orchestrator.plan.recovery import AddNodes, GiveUp, NoNodeAnswers, Replan, StartContainer, StopOthers, Update
from orchestrator.render.outputs import outputs_lines
from orchestrator.render.printable import printable
from orchestrator.specs.run_events import ContainerRemoved, LinesNotKept, NodeBack, NodeLost, Replanned, RunLine


def recovery_line(update: Update) -> str:
    """One line for the terminal, with a second that begins with two spaces where something is done about it; empty for
    an update that needs none."""
    if isinstance(update, RunLine):
        return agent_line(update.event, update.node, update.node_rank)
    if isinstance(update, NodeLost):
        return f"! {update.node} no longer answers: {update.error.message}"
    if isinstance(update, NodeBack):
        return f"· {update.node} answers again"
    if isinstance(update, ContainerRemoved):
        return f"! the container on {update.node} was removed"
    if isinstance(update, Replanned):
        plan = update.plan
        names = ", ".join(part.node for part in plan.nodes)
        begins = "continues" if plan.attempt else "starts"
        return f"✓ {begins} as attempt {plan.attempt} on {names}; master {plan.master}"
    if isinstance(update, LinesNotKept) and not update.reason:
        return "· lines are stored on this computer again"
    if isinstance(update, LinesNotKept):
        return f"! {update.reason}; the run continues, and is followed as before"
    return _of_decision(update)


def _of_decision(update: Update) -> str:
    if isinstance(update, StartContainer):
        return f"→ the container on {update.node} was killed: starting it again"
    if isinstance(update, StopOthers) and update.nodes:
        return f"→ stopping {', '.join(update.nodes)}"
    if isinstance(update, GiveUp):
        return f"✗ {', '.join(update.nodes)} gone for {update.seconds:.0f} s: stopping the run"
    if isinstance(update, Replan):
        return f"→ {', '.join(update.without)} given up: continuing with {', '.join(update.left)}"
    if isinstance(update, AddNodes):
        return f"→ {', '.join(update.nodes)} back and fit: added after this checkpoint"
    if isinstance(update, NoNodeAnswers):
        return f"! no node has answered for {update.seconds:.0f} s"
    return ""


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
