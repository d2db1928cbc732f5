"""`orch stop`: end a run on all its nodes at once."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import report_error, say
from orchestrator.specs.errors import EXIT_OK, PartialError

EXAMPLES = """Examples:

orch stop

orch stop RUN --timeout 120
"""


def register(app: typer.Typer) -> None:
    app.command("stop", epilog=EXAMPLES)(stop)


def stop(
    run: Annotated[str | None, typer.Argument(help="Run id or its beginning; the newest run otherwise.")] = None,
    timeout: Annotated[int, typer.Option("--timeout", min=0, help="Seconds for the last checkpoint.")] = 75,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Stop a run: all ranks are told together, rank 0 writes a checkpoint, containers are removed, logs are kept here.

    Go on later with: orch launch --resume RUN
    """
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.find_runs import choose_run, find_runs, seats_of
    from orchestrator.fleet.records import RunRecord
    from orchestrator.fleet.stop import stop_run

    with connected_for(load_inventory(inventory).inventory.nodes, run) as nodes:
        found = find_runs(nodes)
        chosen = choose_run(found, run)
        seated = seats_of(chosen, {node.name: node for node in nodes})
        say(f"stopping run {chosen.run_id} on {', '.join(seat.node.name for seat in seated)}")
        done = stop_run(seated, RunRecord(chosen.run_id), timeout_s=timeout)
    failed = [outcome.error for outcome in done.outcomes if outcome.error]
    if as_json:
        stopped = [outcome.item.node.name for outcome in done.outcomes if not outcome.error]
        typer.echo(json.dumps({"run_id": chosen.run_id, "stopped": stopped, "checkpoint_step": done.checkpoint_step}))
    for error in failed:
        report_error(error)
    missing = [name for name in found.unreachable if name not in {seat.node.name for seat in seated}]
    if failed or (missing and len(seated) < chosen.nnodes):
        raise PartialError(
            f"run {chosen.run_id} may still run on {', '.join([e.node for e in failed] + missing)}",
            hint=f"when they answer again: orch stop {chosen.run_id}",
        )
    step = done.checkpoint_step
    say(f"✓ run {chosen.run_id} stopped, " + (f"checkpoint of step {step}" if step is not None else "no checkpoint"))
    if step is not None:
        say(f"  → orch launch --resume {chosen.run_id}")
    return EXIT_OK
