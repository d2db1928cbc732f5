"""`orch why`: the first failure of a run, what it means, and what to do; of one that hangs, who waits for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK, ConfigError
from orchestrator.specs.inventory import NodeSpec

EXAMPLES = """Examples:

orch why

orch why RUN --json
"""


def register(app: typer.Typer) -> None:
    app.command("why", epilog=EXAMPLES)(why)


def why(
    run: Annotated[str | None, typer.Argument(help="Run id or its beginning; the newest run otherwise.")] = None,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Say why a run failed, or what it waits for: node, rank, time, evidence, and what to do.

    Needs only the logs that this computer collected; where the nodes answer, they add exit codes, memory and their
    kernel's words. Exit code 0 whatever the answer is; 3 where no such run is known.
    """
    from orchestrator.checks.story import tell
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.runs.evidence import gather_evidence
    from orchestrator.render.console import stdout
    from orchestrator.render.printable import printable
    from orchestrator.render.why import why_json, why_lines

    with connected_for(_nodes(inventory, run), run) as nodes:
        story = tell(gather_evidence(nodes, run))
    if as_json:
        typer.echo(why_json(story))
        return EXIT_OK
    console = stdout()
    for line in why_lines(story):
        console.print(printable(line), markup=False)
    return EXIT_OK


def _nodes(inventory: Path | None, run: str | None) -> tuple[NodeSpec, ...]:
    """Those of the inventory; none where there is no inventory any more, but a record of the run."""
    from orchestrator.fleet.runs.records import recorded_runs

    try:
        return tuple(load_inventory(inventory).inventory.nodes)
    except ConfigError as error:
        kept = any(run is None or record.run_id.startswith(run) for record in recorded_runs())
        if inventory is not None or not kept:
            raise
        say(f"note: {error.message}; this rests on the logs that were collected here")
        return ()
