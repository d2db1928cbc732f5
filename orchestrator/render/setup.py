"""Plan and result of `orch setup`, as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.specs.setup import SetUp, SetupPlan, Step


def plan_text(plans: Sequence[SetupPlan]) -> Iterator[str]:
    """Every command of every node; nodes with the same commands are shown together."""
    groups: dict[tuple[object, ...], list[SetupPlan]] = {}
    for plan in plans:
        groups.setdefault((plan.steps, plan.warnings, plan.refused, plan.hint), []).append(plan)
    for same in groups.values():
        yield f"{', '.join(plan.node for plan in same)}:"
        yield from (f"  {line}" for line in _plan_lines(same[0]))


class StepsDone:
    """Lines about steps that are done: one for each, once all nodes that it is planned for have done it."""

    def __init__(self, plans: Sequence[SetupPlan]) -> None:
        self._planned: dict[str, set[str]] = {}
        for plan in plans:
            for step in plan.to_do:
                self._planned.setdefault(step.why, set()).add(plan.node)
        self._took: dict[str, dict[str, float]] = {why: {} for why in self._planned}

    def note(self, node: str, why: str, seconds: float) -> Iterator[str]:
        """Note that a node has done a step; yield its line if that was the last node."""
        took = self._took[why]
        took[node] = seconds
        if len(took) == len(self._planned[why]):
            yield self._line(why)

    def rest(self) -> Iterator[str]:
        """Yield the lines of the steps that some nodes have done and others have not."""
        return (self._line(why) for why, took in self._took.items() if 0 < len(took) < len(self._planned[why]))

    def _line(self, why: str) -> str:
        took = self._took[why]
        return f"✓ {why}: {', '.join(sorted(took))} ({max(took.values()):.1f} s)"


def step_line(step: Step) -> str:
    """The command as a line to paste on that machine."""
    command = shlex.join(step.argv)
    return f"printf '%s\\n' {shlex.quote(step.stdin.rstrip(chr(10)))} | {command}" if step.stdin else command


def setup_data(plans: Sequence[SetupPlan], results: Sequence[SetUp]) -> list[dict[str, Any]]:
    """Plans and their results."""
    became = {result.node: asdict(result) for result in results}
    return [{**_plan_values(plan), "result": became.get(plan.node)} for plan in plans]


def _plan_lines(plan: SetupPlan) -> Iterator[str]:
    for step in plan.steps:
        if step.done:
            yield f"✓ {step.why}: done already ({step.known_by})"
        else:
            yield f"# {step.why}"
            yield step_line(step)
    for warning in plan.warnings:
        yield f"! {warning}"
    if plan.refused:
        yield f"✗ {plan.refused}"
        yield f"  → {plan.hint}"
    elif not plan.to_do:
        yield "nothing to do"


def _plan_values(plan: SetupPlan) -> dict[str, object]:
    steps = [{**asdict(step), "command": step_line(step) if step.argv else ""} for step in plan.steps]
    return {**asdict(plan), "steps": steps}
