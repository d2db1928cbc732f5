"""`orch launch`: facts, plan, confirm, start, follow."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.launching.command_words import WORDS_LAST, command_words
from orchestrator.cli.launching.launch_options import LaunchOptions, OutputMode
from orchestrator.cli.options import (
    DataOption,
    DetachOption,
    EngineOption,
    EnvOption,
    InventoryOption,
    JsonOption,
    LabelOption,
    MasterOption,
    MasterPortOption,
    MaxRestartsOption,
    MinNodesOption,
    MountOption,
    NodeTimeoutOption,
    NoWatchOption,
    ProfileOption,
    ReplicasOption,
    SecretOption,
    WorkdirOption,
    YesOption,
)

EXAMPLES = """Examples:

orch launch --nodes 5

orch launch --nodes 5 --data ./Data -- gpt2 --epochs 1 --batch-size 2 --seq-len 128

orch launch --nodes auto -- gpt2 --batch-size 2 --seq-len 128

orch launch --nodes alpha,beta --workdir ./mine -- python train.py --lr 1e-3

orch launch --nodes 5 --dry-run

orch launch --nodes 5 --forecast -- gpt2 --batch-size 2 --seq-len 128

orch launch --nodes 5 --min-nodes 3 --node-timeout 60 --detach

orch launch --resume RUN
"""


def register(app: typer.Typer) -> None:
    app.command("launch", epilog=EXAMPLES, context_settings=WORDS_LAST, no_args_is_help=False)(launch)


def launch(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="A workload of the trainer with its options, or python SCRIPT …"),
    ] = None,
    inventory: InventoryOption = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--nodes",
            metavar="NODES|auto",
            help="A number of nodes, or a list: alpha,beta or node[01-05] or 'lab*'; '!gamma' excludes; auto: what "
            "`orch plan` finds best. Default: all.",
        ),
    ] = None,
    label: LabelOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Measure for seconds, show how fast the run would be, and end.")
    ] = False,
    as_json: JsonOption = False,
    detach: DetachOption = False,
    no_watch: NoWatchOption = False,
    name: Annotated[str, typer.Option("--name", help="Begins the run's id.")] = "",
    master: MasterOption = "",
    master_port: MasterPortOption = None,
    profile: ProfileOption = "",
    mount: MountOption = None,
    env: EnvOption = None,
    secret: SecretOption = None,
    workdir: WorkdirOption = None,
    data: DataOption = None,
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with an earlier run.")] = "",
    max_restarts: MaxRestartsOption = None,
    node_timeout: NodeTimeoutOption = None,
    min_nodes: MinNodesOption = None,
    replicas: ReplicasOption = None,
    engine: EngineOption = "",
    yes: YesOption = False,
) -> int:
    """Start a training run on several nodes and follow it.

    NODE_RANK, MASTER_ADDR, MASTER_PORT, NNODES and GPUS_PER_NODE are set in every container; torchrun is written for
    you. All containers start, or none. Ctrl-C leaves the run going and says how to come back. Ranks that fail start
    again from the last checkpoint; a node that stays away ends the run, or with --min-nodes it goes on without.
    """
    options = LaunchOptions(
        command=command_words(context, command),
        nodes=nodes,
        labels=tuple(label or ()),
        master=master,
        master_port=master_port,
        profile=profile,
        mounts=tuple(mount or ()),
        environment=tuple(env or ()),
        secrets=tuple(secret or ()),
        workdir=workdir,
        data=data,
        name=name,
        resume=resume,
        engine=engine,
        max_restarts=max_restarts,
        node_timeout_s=node_timeout,
        min_nodes=min_nodes,
        replicas=replicas,
    )
    loaded = load_inventory(inventory)
    mode = OutputMode(
        dry_run=dry_run,
        forecast=forecast,
        as_json=as_json,
        detach=detach,
        confirmed=yes,
        watch=not no_watch,
        inventory_file=loaded.path.absolute(),
        engine=engine,
    )
    from orchestrator.cli.launching.run_launch import run_launch

    return run_launch(loaded.inventory, options, mode)
