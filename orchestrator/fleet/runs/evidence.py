"""Gather the evidence of a run for a post-mortem: the record on this controller and what its nodes still have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.checks.hang import timestamp
from orchestrator.checks.postmortem import Evidence
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.read_logs import Filter, gather_lines, resolve_logs
from orchestrator.fleet.runs.records import recorded_runs
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.kernel_probe import kernel_lines

TIMEOUT_S = 30.0


def gather_evidence(nodes: Sequence[Node], wanted: str | None, *, clock: Callable[[], float] = time.time) -> Evidence:
    """Evidence of the named run, or of the newest; log lines of nodes that answer are collected first."""
    source = resolve_logs(nodes, wanted)
    plan = source.record.plan()
    latest = next((own for record in recorded_runs()[:1] if (own := record.plan())), None)
    if wanted is None and plan and latest and latest.started_at > plan.started_at:  # its containers are gone
        source, plan = resolve_logs(nodes, latest.run_id), latest
    lines = gather_lines(source, Filter())

    def kernel_of(container: RunningContainer) -> tuple[str, ...]:
        """Kernel messages since the run started; earlier ones are not its cause."""
        return kernel_lines(container.node, int(timestamp(plan.started_at))) if plan else ()

    containers = fan_out(source.containers, lambda one: one.node.engine.container(one.id), timeout_s=TIMEOUT_S)
    kernel = fan_out(source.containers, kernel_of, timeout_s=TIMEOUT_S)
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
