"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--inventory",
        metavar="FILE",
        help="Inventory file. Default: $ORCH_INVENTORY, or the lab's while a lab is up, or ./inventory.yaml.",
        show_default=False,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--nodes",
        metavar="NODES",
        help="A number of nodes, or a list: alpha,beta or node[01-05] or 'lab*'; '!gamma' excludes. Default: all.",
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only nodes that have this label. Repeatable."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write JSON to stdout (docs/json.md). It does not imply --yes.")
]
WorkloadArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- WORKLOAD…]", help="A workload of the trainer with its options, as for `orch launch`."),
]
MasterOption = Annotated[str, typer.Option("--master", metavar="NODE", help="Node of rank 0 (default: the first).")]
MasterPortOption = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        min=1,
        max=65534,
        metavar="PORT",
        help="Port on rank 0's node (default: the next free one from 12355).",
    ),
]
ProfileOption = Annotated[
    str, typer.Option("--profile", metavar="cpu|cuda", help="Image for all nodes (default: by each node's device).")
]
MountOption = Annotated[
    list[str] | None,
    typer.Option("--mount", metavar="SOURCE:TARGET[:ro]", help="Bind mount from each node. Repeatable."),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="KEY=VALUE", help="Environment variable for the containers. Repeatable."),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=FILE]",
        help="Your environment variable NAME, or FILE, as /run/secrets/NAME in the containers; not stored. Repeatable.",
    ),
]
WorkdirOption = Annotated[
    Path | None,
    typer.Option("--workdir", metavar="DIR", help="Your code, copied to every node (default: the current folder)."),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Prepared data, copied to nodes without it (default: ./Data)."),
]
EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="docker|process", help="process: no containers, all ranks on this computer."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Required where there is no terminal.")]
RunArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="Run id, or its first characters (default: the newest run).")
]
RunToStopArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Run id, or its first characters (default: your only active run)."),
]
TimeoutToStopOption = Annotated[
    int, typer.Option("--timeout", min=0, metavar="SECONDS", help="Time for the last checkpoint.")
]
MaxRestartsOption = Annotated[
    int | None,
    typer.Option(
        "--max-restarts", min=0, metavar="N", help="Restarts allowed without a new checkpoint in between (default: 3)."
    ),
]
NodeTimeoutOption = Annotated[
    int | None,
    typer.Option(
        "--node-timeout",
        min=1,
        metavar="SECONDS",
        help="How long a node may be lost before it is dropped (default: 120).",
    ),
]
MinNodesOption = Annotated[
    int | None,
    typer.Option("--min-nodes", min=1, metavar="N", help="Continue without lost nodes while this many are left."),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option("--replicas", min=0, metavar="N", help="Other nodes that get a copy of each checkpoint (default: 1)."),
]
DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="Do not follow the run; a supervisor watches it in the background.")
]
NoWatchOption = Annotated[
    bool, typer.Option("--no-watch", help="Do not start a supervisor for a run that is not followed.")
]
