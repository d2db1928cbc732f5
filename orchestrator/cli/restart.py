"""`orch restart`: stop a run with a checkpoint, and go on from there."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.launching.words import Manner, Wanted
from orchestrator.cli.options import (
    DetachOption,
    EngineOption,
    InventoryOption,
    JsonOption,
    NodesOption,
    NoWatchOption,
    RunArgument,
    YesOption,
)

EXAMPLES = """Examples:

orch restart

orch restart RUN --nodes alpha,beta --detach
"""


def register(app: typer.Typer) -> None:
    app.command("restart", epilog=EXAMPLES)(restart)


def restart(
    run: RunArgument = None,
    timeout: Annotated[int, typer.Option("--timeout", min=0, help="Seconds for the last checkpoint.")] = 75,
    nodes: NodesOption = None,
    as_json: JsonOption = False,
    detach: DetachOption = False,
    no_watch: NoWatchOption = False,
    engine: EngineOption = "",
    inventory: InventoryOption = None,
    yes: YesOption = False,
) -> int:
    """Stop a run as `orch stop` does, then go on with it as `orch resume` does.

    Where a node cannot be stopped, nothing is started.
    """
    from orchestrator.cli.launching.steps import carry_out
    from orchestrator.cli.launching.stopping import stop_and_tell

    loaded = load_inventory(inventory)
    stopped = stop_and_tell(loaded.inventory.nodes, run, timeout_s=timeout)
    manner = Manner(
        dry_run=False,
        forecast=False,
        as_json=as_json,
        detach=detach,
        confirmed=yes or as_json,
        watch=not no_watch,
        inventory_file=loaded.path.absolute(),
        engine=engine,
    )
    return carry_out(loaded.inventory, Wanted(resume=stopped.run_id, nodes=nodes, engine=engine), manner)
