"""`orch runs`: the runs that the nodes and this controller know of."""

from __future__ import annotations

from dataclasses import asdict

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, JsonOption, NodesOption, OutputFormat, OutputOption
from orchestrator.cli.report import exit_code, say, write_json, write_names
from orchestrator.specs.errors import EXIT_OK, NodeUnreachableError

EXAMPLES = "orch runs\norch runs -o name"


def runs(
    nodes: NodesOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """List runs, newest first: those with containers on the nodes, then those recorded on this computer.

    Exit code 4: no node answered; 5: some did not answer and may have runs that are not listed.
    """
    from orchestrator.cli.launching.stopping import half_way
    from orchestrator.fleet.connect import connected, stand_ins
    from orchestrator.fleet.runs.find_runs import find_runs
    from orchestrator.fleet.runs.history import recorded_history
    from orchestrator.render.console import show
    from orchestrator.render.runs import run_data, runs_table

    specs = known_nodes(inventory, None, nodes)
    with connected(specs) as reached:
        found = find_runs([*reached, *(stand_ins(specs) if nodes is None else ())])
    for name, problem in found.unreachable.items():
        say(f"note: {name}: {problem.message}")
    for line in found.not_understood:
        say(f"note: {line}")
    code = exit_code(len(found.unreachable), len(specs))
    shown = {run.run_id for run in found.runs}
    past = [past for past in recorded_history() if past.run_id not in shown]
    if as_json:
        silent = {name: problem.message for name, problem in found.unreachable.items()}
        told = {"runs": list(map(run_data, found.runs)), "history": list(map(asdict, past)), "unreachable": silent}
        write_json(told)
        return code
    if not found.runs and not past:
        say(_none(code))
        return code
    if output is OutputFormat.NAME:
        write_names((*(run.run_id for run in found.runs), *(one.run_id for one in past)))
        return code
    show(runs_table(found.runs, past, wide=output is OutputFormat.WIDE))
    for run in found.runs:
        if line := half_way(run):
            say(line)
    return code


def _none(code: int) -> str:
    """Message where no run is shown: there is none, or no node could say so."""
    if code == EXIT_OK:
        return "no runs yet\n  → orch launch"
    who = "no node answered" if code == NodeUnreachableError.exit_code else "the nodes that answered know of no run"
    return f"{who}, and no run is on record on this computer\n  → orch doctor"
