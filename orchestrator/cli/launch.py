"""`orch launch`: facts, plan, confirm, start, follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.cli.completion import node_words, workloads
from orchestrator.cli.context import LoadedInventory, load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.inventory_place import HERE, inventory_place
from orchestrator.cli.launching.command_words import WORDS_LAST, with_command
from orchestrator.cli.options import OutputMode
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch launch --nodes 5
orch launch --nodes 5 --data ./Data -- gpt2 --epochs 1 --batch-size 2 --seq-len 128
orch launch --nodes auto -- gpt2 --batch-size 2 --seq-len 128
orch launch --data ./data --data ../more -- python train.py --lr 1e-3
orch launch --nodes alpha,beta --workdir ./mine -- python train.py --lr 1e-3
orch launch --nodes 5 --dry-run
orch launch --nodes 5 --forecast -- gpt2 --batch-size 2 --seq-len 128
orch launch --nodes 5 --min-nodes 3 --node-timeout 60 --detach
orch launch --resume RUN
"""
SETTINGS = WORDS_LAST


@expand(
    nodes=Annotated[
        str | None,
        typer.Option(
            "-n",
            "--nodes",
            metavar="NODES|auto",
            autocompletion=node_words,
            help="A number of nodes, names (alpha,beta or node[01-05] or 'lab*') or labels (room=lab); '!gamma' "
            "excludes one; auto: the fastest set by `orch plan` (default: all).",
        ),
    ]
)
def launch(
    context: typer.Context,
    options: LaunchOptions,
    mode: OutputMode,
    command: list[str] | None = typer.Argument(
        None,
        metavar="[-- COMMAND...]",
        autocompletion=workloads,
        help="A workload of the trainer with its options, or your own: python SCRIPT ...",
    ),
) -> int:
    """Start a training run on several nodes and follow it.

    Starts torchrun in one container per node, with NODE_RANK, MASTER_ADDR, MASTER_PORT, NNODES and GPUS_PER_NODE set.
    Either all containers start or none. Failed ranks restart from the last checkpoint. A node that
    stays lost ends the run; with --min-nodes the run continues without it. Ctrl-C stops following; the run continues.
    """
    from orchestrator.cli.launching.launch import launch as start
    from orchestrator.cli.launching.order import LaunchOrder

    options = with_command(context, options, command)
    loaded = _inventory(mode, options)
    mode = replace(mode, inventory=loaded.path.absolute())
    return start(LaunchOrder(inventory=loaded.inventory, options=options, mode=mode))


def _inventory(mode: OutputMode, options: LaunchOptions) -> LoadedInventory:
    """Read the inventory. Where there is none for a new run, this computer is the only node: the launch asks before it
    writes that down."""
    file, origin = inventory_place(mode.inventory)
    if file.exists() or origin != HERE or options.on or options.resume:
        return load_inventory(mode.inventory)
    from orchestrator.cli.init import this_computer

    return LoadedInventory(inventory=this_computer(options.engine), path=file)
