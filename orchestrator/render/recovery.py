"""What is decided for a run that something befell, and what its supervisors say, in a line each."""

from __future__ import annotations

from orchestrator.plan.recovery import GiveUp, OutOfSight, PlanAnew, StartAgain, StopRest, TakeIn, Told
from orchestrator.specs.event import Event, parse_event
from orchestrator.specs.run_events import Back, Lost, Removed, Replanned, Said, Unkept

WORTH_A_LINE_S = 60
"""Without progress: a shorter pause is an evaluation, or a script that writes now and then."""


def recovery_line(told: Told) -> str:
    """Empty where it is none of this."""
    if isinstance(told, Said):
        event = parse_event(told.text, told.rank)
        return _of_supervisor(event, told) if event else ""
    if isinstance(told, Lost):
        return f"! {told.node} does not answer any more: {told.error.message}"
    if isinstance(told, Back):
        return f"· {told.node} answers again"
    if isinstance(told, Removed):
        return f"! {told.node}: somebody removed its container"
    if isinstance(told, Replanned):
        plan = told.plan
        names = ", ".join(part.node for part in plan.nodes)
        return f"✓ goes on as attempt {plan.attempt} on {names}; master {plan.master}"
    if isinstance(told, Unkept):
        return f"! {told.reason}; the run goes on, and is followed as before"
    return _of_decision(told)


def _of_decision(told: Told) -> str:
    if isinstance(told, StartAgain):
        return f"→ the container on {told.node} was killed: starting it again"
    if isinstance(told, StopRest) and told.nodes:
        return f"→ stopping {', '.join(told.nodes)}"
    if isinstance(told, GiveUp):
        return f"✗ {', '.join(told.nodes)} gone for {told.seconds:.0f} s: stopping the run"
    if isinstance(told, PlanAnew):
        return f"→ {', '.join(told.without)} given up: going on with {', '.join(told.left)}"
    if isinstance(told, TakeIn):
        return f"→ {', '.join(told.nodes)} back and fit: taken in after this checkpoint"
    if isinstance(told, OutOfSight):
        return f"! no node has answered for {told.seconds:.0f} s"
    return ""


def _of_supervisor(event: Event, said: Said) -> str:
    """Rank 0's speaks for all. Of a stop, the command that stops tells."""
    values = event.values
    if event.kind == "again" and said.node_rank == 0 and values.get("class") != "stopped":
        rank = f"rank {values['rank']} on " if values.get("rank") is not None else ""
        left = values.get("restarts_left", -1)
        more = f" ({left} more times at most)" if isinstance(left, int) and left >= 0 else ""
        return f"! {rank}{values.get('node', '?')}: {values.get('reason', '')}; all start again{more}"
    if event.kind == "stalled":
        return f"! no word from {_names(values.get('nodes'))} for {values.get('seconds', '?')} s"
    if event.kind == "heard":
        return f"· {_names(values.get('nodes'))} heard again"
    if event.kind == "stuck" and isinstance(seconds := values.get("seconds"), int) and seconds >= WORTH_A_LINE_S:
        return f"! no progress on {said.node} for {seconds} s; where each rank stands: orch why"
    if event.kind == "waiting":
        return f"… waiting for {_names(values.get('for'))} ({values.get('seconds', '?')} s)"
    return ""


def _names(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else "?"
