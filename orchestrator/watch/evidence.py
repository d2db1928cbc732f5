"""Gather the evidence of a run for a post-mortem: the record on this controller and what its nodes still have."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from contract.event_lines import is_redrawn
from orchestrator.checks.hang import timestamp
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.code_files import is_folder
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.one_supervisor import supervisor_sought
from orchestrator.fleet.runs.read_logs import collect_logs, resolve_logs
from orchestrator.nodes.cluster_nodes import cluster_of
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.kernel_probe import kernel_lines
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine
from orchestrator.state.postmortem import EVENTS, EVENTS_OF_A_NODE, Evidence
from orchestrator.store.run_record import RunRecord

TIMEOUT_S = 30.0
LAST_LINES = 1000
"""Lines kept of a node, the newest; more than a post-mortem reads, since two followers record in different order."""
LAST_CHARS = 4 * 1024 * 1024
"""Characters of these lines."""
LINES_READ = 1_000_000
"""Lines of a node in which the last line of a rank is looked for, if it is silent while others there write: some ten
seconds."""


def gather_evidence(nodes: Sequence[Node], wanted: str | None) -> Evidence:
    """Evidence of the named run, or of the newest; log lines of nodes that answer are collected first."""
    source = resolve_logs(nodes, wanted)
    plan = source.record.plan()
    of_cluster = plan is not None and bool(plan.cluster)
    collect_logs((*(source.earlier if of_cluster else ()), *source.containers), source.record)

    def kernel_of(container: RunningContainer) -> tuple[str, ...]:
        """Kernel messages since the run started; earlier ones are not its cause. A cluster has those of its login node
        alone."""
        return kernel_lines(container.node, int(timestamp(plan.started_at))) if plan and not of_cluster else ()

    containers = fan_out(source.containers, lambda one: one.node.engine.container(one.id), timeout_s=TIMEOUT_S)
    kernel = fan_out(source.containers, kernel_of, timeout_s=TIMEOUT_S)
    now = time.time()
    return Evidence(
        run_id=source.run_id,
        plan=plan,
        attempt=source.attempt,
        asked=True,
        cluster=next((cluster_of(one.node) for one in source.containers), ""),
        lines=evidence_lines(source.record, plan),
        containers={o.item.node.name: o.result for o in containers if o.result},
        kernel={o.item.node.name: o.result for o in kernel if o.result},
        silent=tuple(source.unreachable),
        journal=source.record.journal,
        is_supervised=supervisor_sought(source.record, now).found,
        now=now,
        is_folder=is_folder,
    )


def evidence_lines(record: RunRecord, plan: Plan | None) -> tuple[RunLine, ...]:
    """The lines that a post-mortem reads, in order of time: memory and time do not grow with the record."""
    ranks = {
        part.node: frozenset(range(part.first_rank, part.first_rank + part.nproc_per_node))
        for part in (plan.nodes if plan else ())
    }
    lines: dict[RunLine, None] = {}
    for name in record.names:
        newest = list(_newest(record.newest(name), ranks.get(name, frozenset())))
        lines |= dict.fromkeys(reversed(newest))
    lines |= dict.fromkeys(event_lines(record))
    return tuple(sorted(lines, key=_order))


def event_lines(record: RunRecord) -> list[RunLine]:
    """The events that a post-mortem reads, the newest of each node, in order of time."""
    events: dict[str, deque[RunLine]] = {}
    for line in record.events(*EVENTS):
        events.setdefault(line.node, deque(maxlen=EVENTS_OF_A_NODE)).append(line)
    return sorted((line for of_node in events.values() for line in of_node), key=_order)


def _order(line: RunLine) -> tuple[str, int]:
    return line.time, line.node_rank


def _newest(lines: Iterable[RunLine], ranks: frozenset[int]) -> Iterator[RunLine]:
    """The first `LAST_LINES` of a node's lines, which come newest first, and the first of each of these ranks."""
    chars, taken, ranks_seen = 0, 0, set[int | None]()
    for number, line in enumerate(lines):
        full = taken >= LAST_LINES or chars > LAST_CHARS
        if (full and ranks_seen >= ranks) or number >= LINES_READ:
            return
        if is_redrawn(line.text):
            continue
        taken += 1
        if not full or (line.rank in ranks and line.rank not in ranks_seen):
            yield line
        chars += len(line.text)
        ranks_seen.add(line.rank)


def recorded_evidence(record: RunRecord) -> Evidence:
    """Evidence of a run without its nodes."""
    plan = record.plan()
    return Evidence(
        run_id=record.run_id,
        plan=plan,
        lines=evidence_lines(record, plan),
        journal=record.journal,
        is_folder=is_folder,
    )
