"""Decisions of the supervisor after a fault, and reports about files, in a line each."""

from __future__ import annotations

from contract.events import OutputsEvent
from orchestrator.render.outputs import outputs_lines
from orchestrator.specs.run_events import ContainerRemoved, Replanned, RunLine
from orchestrator.state.recovery import AddNodes, GiveUp, NoNodeAnswers, Replan, StartContainer, StopOthers, Update


def recovery_line(update: Update) -> str:
    """One line for the terminal, with a second that begins with two spaces where something is done about it; empty for
    an update that needs none."""
    if isinstance(update, RunLine):
        return outputs_lines(update.event, update.node) if isinstance(update.event, OutputsEvent) else ""
    if isinstance(update, ContainerRemoved):
        return f"! the container on {update.node} was removed"
    if isinstance(update, Replanned):
        plan = update.plan
        names = ", ".join(part.node for part in plan.nodes)
        begins = "continues" if plan.attempt else "starts"
        return f"✓ {begins} as attempt {plan.attempt} on {names}; master {plan.master}"
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
