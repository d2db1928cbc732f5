"""`orch runs`: the runs that the nodes and this controller know of."""

from __future__ import annotations

import json

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK


def register(app: typer.Typer) -> None:
    app.command("runs", epilog="Example: orch runs --json")(runs)


def runs(as_json: JsonOption = False, inventory: InventoryOption = None) -> int:
    """List runs, newest first: those whose containers the nodes hold, then those that only this computer remembers."""
    from orchestrator.cli.launching.stopping import half_way
    from orchestrator.fleet.connect import connected, stand_ins
    from orchestrator.fleet.runs.find_runs import find_runs
    from orchestrator.fleet.runs.history import remembered
    from orchestrator.render.console import stdout
    from orchestrator.render.printable import printable
    from orchestrator.render.runs import run_data, runs_table

    specs = load_inventory(inventory).inventory.nodes
    with connected(specs) as nodes:
        found = find_runs([*nodes, *stand_ins(specs)])
    for name, problem in found.unreachable.items():
        say(f"note: {name}: {problem.message}")
    for line in found.not_understood:
        say(f"note: {line}")
    shown = {run.run_id for run in found.runs}
    past = [past for past in remembered() if past.run_id not in shown]
    if as_json:
        ended = [
            {"run_id": run.run_id, "state": run.state, "reason": run.reason, "command": run.command} for run in past
        ]
        typer.echo(json.dumps({"runs": [run_data(run) for run in found.runs], "remembered": ended}, indent=2))
        return EXIT_OK
    if not found.runs and not past:
        say("no runs yet\n  → orch launch --nodes 5")
        return EXIT_OK
    if found.runs:
        stdout().print(runs_table(found.runs))
    for run in found.runs:
        if line := half_way(run):
            say(line)
    for old in past:
        line = f"{old.run_id}  {old.state}  {old.started_at[:16]}  {old.command}  ({old.reason})"
        stdout().print(printable(line), markup=False)
    return EXIT_OK
