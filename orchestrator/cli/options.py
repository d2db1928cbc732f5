"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--inventory",
        help="Inventory file. Else $ORCH_INVENTORY, else the lab's while one is up, else ./inventory.yaml.",
        show_default=False,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option("--nodes", metavar="N|NAMES", help="A number of nodes, or names: alpha,beta or node[01-05]."),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only nodes with this label; repeat for more."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout; it grants nothing.")]
WorkloadArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- WORKLOAD…]", help="A workload of the trainer with its options, as for `orch launch`."),
]
MasterOption = Annotated[str, typer.Option("--master", help="Node of rank 0; the first one otherwise.")]
MasterPortOption = Annotated[
    int | None,
    typer.Option(
        "--master-port", min=1, max=65534, metavar="PORT", help="This port of rank 0's node; else the next free one."
    ),
]
ProfileOption = Annotated[str, typer.Option("--profile", help="Image for all nodes: cpu or cuda.")]
MountOption = Annotated[
    list[str] | None, typer.Option("--mount", metavar="SOURCE:TARGET[:ro]", help="A folder of the nodes.")
]
EnvOption = Annotated[list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="Set in the containers.")]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=FILE]",
        help="Your variable, or a file, as /run/secrets/NAME in the containers; kept nowhere.",
    ),
]
WorkdirOption = Annotated[
    Path | None, typer.Option("--workdir", help="Folder of your code, copied to every node; the current one otherwise.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Prepared data, copied to nodes that lack it; ./Data where there is one."),
]
EngineOption = Annotated[str, typer.Option("--engine", help="docker, or process: no containers, on this computer.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; required where there is no terminal.")]
RunArgument = Annotated[str | None, typer.Argument(help="Run id or its beginning; the newest run otherwise.")]
RunToStopArgument = Annotated[
    str | None, typer.Argument(help="Run id or its beginning; otherwise the only run of yours that goes on.")
]
MaxRestartsOption = Annotated[
    int | None,
    typer.Option(
        "--max-restarts", min=0, metavar="N", help="Starts after failures without a checkpoint in between; else 3."
    ),
]
NodeTimeoutOption = Annotated[
    int | None,
    typer.Option("--node-timeout", min=1, metavar="S", help="Seconds until a lost node is given up; else 120."),
]
MinNodesOption = Annotated[
    int | None,
    typer.Option("--min-nodes", min=1, metavar="M", help="Go on without lost nodes while so many are left."),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option("--replicas", min=0, metavar="K", help="Other nodes that each checkpoint is copied to; else 1."),
]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Do not follow the run; a watcher stays with it.")]
NoWatchOption = Annotated[bool, typer.Option("--no-watch", help="Leave no watcher with a run that nobody follows.")]
