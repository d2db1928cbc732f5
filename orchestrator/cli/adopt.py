"""`orch adopt`: take over a run whose launch was cut short."""

from __future__ import annotations

import json

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.launching.launch_options import OutputMode
from orchestrator.cli.options import (
    DetachOption,
    EngineOption,
    InventoryOption,
    JsonOption,
    NoWatchOption,
    RunArgument,
)
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK

EXAMPLES = """Examples:

orch adopt RUN

orch adopt RUN --detach
"""


def register(app: typer.Typer) -> None:
    app.command("adopt", epilog=EXAMPLES)(adopt)


def adopt(
    run: RunArgument = None,
    detach: DetachOption = False,
    no_watch: NoWatchOption = False,
    as_json: JsonOption = False,
    engine: EngineOption = "",
    inventory: InventoryOption = None,
) -> int:
    """Finish a launch that was cut short (laptop closed, controller dead), and follow the run.

    Containers that lack are created, those created are started. To be rid of it instead: orch stop RUN
    """
    from orchestrator.cli.launching.attach import rejoined
    from orchestrator.cli.launching.supervise import leave_to_a_watcher, see_through, tell_line
    from orchestrator.cli.launching.view import how_to_go_on

    loaded = load_inventory(inventory)
    mode = OutputMode(
        dry_run=False,
        forecast=False,
        as_json=as_json,
        detach=detach,
        confirmed=True,
        watch=not no_watch,
        inventory_file=loaded.path.absolute(),
        engine=engine,
    )
    told = (lambda _told: None) if as_json else tell_line
    with rejoined(loaded.inventory, run, engine, told, ask=not as_json, finish=True) as attended:
        plan = attended.plan
        run_id, names = plan.run_id, ", ".join(seat.node.name for seat in attended.seated)
        say(f"run {run_id} is up on {names}")
        if not detach:
            return see_through(attended, mode, out_of_sight_s=float(attended.plan.node_timeout_s))
    typer.echo(json.dumps({"run_id": run_id}) if as_json else run_id)
    leave_to_a_watcher(plan, mode)
    say(how_to_go_on(run_id))
    return EXIT_OK
