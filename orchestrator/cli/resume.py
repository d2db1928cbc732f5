"""`orch resume`: continue a run, on the nodes that it had or on others."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.cli.completion import run_ids, workloads
from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.launching.command_words import WORDS_AFTER_AN_ARGUMENT, with_command
from orchestrator.cli.options import OutputMode
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch resume RUN
orch resume RUN --nodes alpha,beta
orch resume RUN --min-nodes 2 -- gpt2 --epochs 5
"""
SETTINGS = WORDS_AFTER_AN_ARGUMENT


@expand(omit=("name", "resume", "forecast"))
def resume(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters.")],
    options: LaunchOptions,
    mode: OutputMode,
    command: list[str] | None = typer.Argument(
        None,
        metavar="[-- COMMAND...]",
        autocompletion=workloads,
        help="New command (default: the one of the last attempt).",
    ),
) -> int:
    """Resume a run from its newest checkpoint, as the next attempt of the same run.

    Options that are not given keep their values. Code and data are copied to nodes without them. Rank 0 goes to a node
    with the newest intact checkpoint; if none of the chosen nodes has it, it is copied to the node of rank 0.
    """
    from orchestrator.cli.launching.launch import launch as start
    from orchestrator.cli.launching.order import LaunchOrder

    options = replace(with_command(context, options, command), resume=run)
    loaded = load_inventory(mode.inventory)
    mode = replace(mode, inventory=loaded.path.absolute())
    return start(LaunchOrder(inventory=loaded.inventory, options=options, mode=mode))
