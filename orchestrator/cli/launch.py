"""`orch launch`: facts, plan, confirm, start, follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.launch_words import Manner, Wanted
from orchestrator.cli.options import InventoryOption, JsonOption, LabelOption, NodesOption, YesOption

EXAMPLES = """Examples:

orch launch --nodes 5

orch launch --nodes 5 --data ./Data -- gpt2 --epochs 1 --batch-size 2 --seq-len 128

orch launch --nodes alpha,beta --workdir ./mine -- python train.py --lr 1e-3

orch launch --nodes 5 --dry-run

orch launch --nodes 5 --forecast -- gpt2 --batch-size 2 --seq-len 128

orch launch --resume RUN
"""


def register(app: typer.Typer) -> None:
    app.command("launch", epilog=EXAMPLES, no_args_is_help=False)(launch)


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="A workload of the trainer with its options, or python SCRIPT …"),
    ] = None,
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    label: LabelOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Measure for seconds, show how fast the run would be, and end.")
    ] = False,
    as_json: JsonOption = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow the run.")] = False,
    name: Annotated[str, typer.Option("--name", help="Begins the run's id.")] = "",
    master: Annotated[str, typer.Option("--master", help="Node of rank 0; the first one otherwise.")] = "",
    profile: Annotated[str, typer.Option("--profile", help="Image for all nodes: cpu or cuda.")] = "",
    mount: Annotated[
        list[str] | None, typer.Option("--mount", metavar="SOURCE:TARGET[:ro]", help="A folder of the nodes.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="Set in the containers.")] = None,
    workdir: Annotated[Path | None, typer.Option("--workdir", help="Folder of your code, copied to the nodes.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Prepared data, copied to nodes that lack it; ./Data where there is one."),
    ] = None,
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with an earlier run.")] = "",
    engine: Annotated[str, typer.Option("--engine", help="docker, or process: no containers, on this computer.")] = "",
    yes: YesOption = False,
) -> int:
    """Start a training run on several nodes and follow it.

    NODE_RANK, MASTER_ADDR, MASTER_PORT, NNODES and GPUS_PER_NODE are set in every container; torchrun is written for
    you. All containers start, or none. Ctrl-C leaves the run going and says how to come back.
    """
    wanted = Wanted(
        command=tuple(command or ()),
        nodes=nodes,
        labels=tuple(label or ()),
        master=master,
        profile=profile,
        mounts=tuple(mount or ()),
        environment=tuple(env or ()),
        workdir=workdir,
        data=data,
        name=name,
        resume=resume,
        engine=engine,
    )
    manner = Manner(dry_run=dry_run, forecast=forecast, as_json=as_json, detach=detach, confirmed=yes or as_json)
    from orchestrator.cli.launch_steps import carry_out

    return carry_out(load_inventory(inventory).inventory, wanted, manner)
