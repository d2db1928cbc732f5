"""`orch status`: how a run and its nodes are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, Output, RunArgument
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK, PartialError, RunFailedError
from orchestrator.specs.run import State

if TYPE_CHECKING:
    from orchestrator.specs.past_run import PastRun

EXAMPLES = """\
orch status
orch status RUN -o wide
"""


def status(*, run: RunArgument = None, output: Output, inventory: InventoryOption = None) -> int:
    """Show the state of a run on each node, its last step, its speed against the forecast, and what its nodes use.

    The state of a run is that of its worst node. Exit code 0: running or done; 1: failed; 5: some of its nodes are
    lost. A run that no node knows is shown from the record on this computer, with the time of the record.
    """
    from orchestrator.checks.slow_ranks import slow_ranks
    from orchestrator.cli.launching.stopping import half_way, tell_missing
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.runs.find_runs import choose_run, find_runs, running_containers
    from orchestrator.fleet.runs.progress import forecast_of, last_event, past_run, resources_of
    from orchestrator.fleet.runs.read_logs import recorded_only
    from orchestrator.fleet.runs.records import RunRecord
    from orchestrator.render.runs import run_data, run_table

    with connected_for(known_nodes(inventory, run), run) as reached:
        found = find_runs(reached)
        tell_missing(found)
        if recorded := recorded_only(found, run):
            return _of_the_record(past_run(recorded, found.unreachable), output)
        chosen = choose_run(found, run)
        containers = running_containers(chosen, {node.name: node for node in reached})
        forecast = forecast_of(containers, RunRecord(chosen.run_id))
        last = last_event(containers, forecast)
        used = resources_of(containers) if chosen.state is State.RUNNING else {}
    names = [member.node for member in chosen.members]
    table = run_table(chosen, last, forecast, used, wide=output.wide)
    output.write(run_data(chosen, last, forecast, used), names, table)
    for slow in slow_ranks(last, names) if output.is_table and chosen.state is State.RUNNING else ():
        say(f"! {slow.what}\n  → {slow.todo(chosen.run_id)}")
    if line := half_way(chosen):
        say(line)
    codes = {State.FAILED: RunFailedError.exit_code, State.LOST: PartialError.exit_code}
    return codes.get(chosen.state, EXIT_OK)


def _of_the_record(past: PastRun, output: Output) -> int:
    """Show the record of a run that no node knows, and return the exit code."""
    from orchestrator.render.runs import past_data, past_lines

    output.write(past_data(past), past.nodes, list(past_lines(past)))
    known = {State.FAILED.value: RunFailedError.exit_code, State.SUCCEEDED.value: EXIT_OK, "stopped": EXIT_OK}
    return known.get(past.state, PartialError.exit_code)
