"""`orch runs`: the runs that the nodes and this controller know of."""

from __future__ import annotations

from dataclasses import asdict

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, NodesOption, Output
from orchestrator.cli.report import exit_code, say
from orchestrator.specs.errors import EXIT_OK, NodeUnreachableError

EXAMPLES = "orch runs\norch runs -o name"


def runs(*, nodes: NodesOption = None, output: Output, inventory: InventoryOption = None) -> int:
    """List runs, newest first: those with containers on the nodes, then those recorded on this computer.

    Exit code 4: no node answered; 5: some did not answer and may have runs that are not listed.
    """
    from orchestrator.cli.launching.stopping import half_way, tell_missing
    from orchestrator.fleet.connect import connected, stand_ins
    from orchestrator.fleet.runs.find_runs import find_runs
    from orchestrator.fleet.runs.progress import recorded_history
    from orchestrator.render.runs import run_data, runs_table

    specs = known_nodes(inventory, None, nodes)
    with connected(specs) as reached:
        found = find_runs([*reached, *(stand_ins(specs) if nodes is None else ())])
    tell_missing(found)
    code = exit_code(len(found.unreachable), len(specs))
    shown = [run.run_id for run in found.runs]
    past = [past for past in recorded_history() if past.run_id not in shown]
    silent = {name: problem.message for name, problem in found.unreachable.items()}
    data = {"runs": list(map(run_data, found.runs)), "history": list(map(asdict, past)), "unreachable": silent}
    if output.as_json or shown or past:
        names = [*shown, *(one.run_id for one in past)]
        output.write(data, names, runs_table(found.runs, past, wide=output.wide))
    elif code == EXIT_OK:
        say("no runs yet\n  → orch launch")
    else:
        none = code == NodeUnreachableError.exit_code
        known = "no node answered" if none else "the nodes that answered know of no run"
        say(f"{known}, and no run is on record on this computer\n  → orch doctor")
    for line in map(half_way, found.runs) if output.is_table else ():
        if line:
            say(line)
    return code
