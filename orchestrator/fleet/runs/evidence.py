"""Gather the evidence of a run for a post-mortem: the record on this controller and what its nodes still have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.checks.hang import timestamp
from orchestrator.checks.postmortem import Evidence
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.read_logs import Filter, LogSource, gather_lines, resolve_logs
from orchestrator.fleet.runs.records import recorded_runs
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.kernel_probe import kernel_lines
from orchestrator.specs.plan import Plan

TIMEOUT_S = 30.0


def gather_evidence(nodes: Sequence[Node], wanted: str | None, *, clock: Callable[[], float] = time.time) -> Evidence:
    """Evidence of the named run, or of the newest; log lines of nodes that answer are collected first."""
    source = resolve_logs(nodes, wanted)
    if wanted is None and (newer := _newer_here(source)):
        source = resolve_logs(nodes, newer)
    lines = gather_lines(source, Filter())
    plan = source.record.plan()
    containers = fan_out(source.containers, lambda one: one.node.engine.container(one.id), timeout_s=TIMEOUT_S)
    kernel = fan_out(source.containers, lambda one: _kernel(one, plan), timeout_s=TIMEOUT_S)
    return Evidence(
        run_id=source.run_id,
        plan=plan,
        lines=tuple(lines),
        containers={o.item.node.name: o.result for o in containers if o.result},
        kernel={o.item.node.name: o.result for o in kernel if o.result},
        silent=tuple(source.unreachable),
        outcome=source.record.outcome(),
        now=clock(),
    )


def _newer_here(source: LogSource) -> str:
    """A run of this controller that began after the newest that the nodes show, its containers gone; or empty."""
    plans = [plan for record in recorded_runs()[:1] if (plan := record.plan())]
    shown = source.record.plan()
    return plans[0].run_id if plans and shown and plans[0].started_at > shown.started_at else ""


def _kernel(container: RunningContainer, plan: Plan | None) -> tuple[str, ...]:
    """Kernel messages since the run started; earlier ones are not its cause."""
    return kernel_lines(container.node, int(timestamp(plan.started_at))) if plan else ()
