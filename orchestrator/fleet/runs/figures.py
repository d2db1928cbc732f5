"""Collect the figures of machines and runs, for `orch metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.fleet.runs.find_runs import find_runs, running_containers
from orchestrator.fleet.runs.progress import forecast_of, last_event, resources_of
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes.interface import Node
from orchestrator.specs.fleet_figures import FleetFigures, RunFigures
from orchestrator.specs.run import Run, State


def collect_figures(
    nodes: Sequence[Node], *, some: bool = False, clock: Callable[[], float] = time.monotonic
) -> FleetFigures:
    """Figures of all runs that the nodes hold. A node without an answer is one of the figures, not an error. `some`:
    as of `find_runs`."""
    began = clock()
    found = find_runs(nodes, some=some)
    by_name = {node.name: node for node in nodes}

    def of_run(run: Run) -> RunFigures:
        if not any(member.state is State.RUNNING for member in run.members):
            return RunFigures(run=run, resources={})
        containers = running_containers(run, by_name)
        forecast = forecast_of(containers, RunRecord(run.run_id))
        return RunFigures(run=run, last_event=last_event(containers, forecast), resources=resources_of(containers))

    runs = tuple(of_run(run) for run in found.runs)
    return FleetFigures(
        nodes=tuple(by_name), unreachable=found.unreachable, runs=runs, seconds=max(0.0, clock() - began)
    )
