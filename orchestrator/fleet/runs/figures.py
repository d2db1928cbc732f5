"""Collect the figures of machines and runs, for `orch metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.fleet.runs.find_runs import find_runs
from orchestrator.fleet.runs.load_state import load_state, state_without_lines
from orchestrator.nodes.interface import Node
from orchestrator.specs.run import Run
from orchestrator.state.fleet_figures import FleetFigures
from orchestrator.state.run_state import RunState


def collect_figures(
    nodes: Sequence[Node],
    *,
    some: bool = False,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> FleetFigures:
    """Figures of all runs that the nodes hold. A node without an answer is one of the figures, not an error. `some`:
    as of `find_runs`."""
    began, at = clock(), wall()
    found = find_runs(nodes, some=some)
    by_name = {node.name: node for node in nodes}

    def of_run(run: Run) -> RunState:
        return load_state(run, found, by_name, at) if run.is_going else state_without_lines(run, found, at)

    runs = tuple(of_run(run) for run in found.runs)
    seconds = max(0.0, clock() - began)
    return FleetFigures(nodes=tuple(by_name), unreachable=found.unreachable, runs=runs, at=at, seconds=seconds)
