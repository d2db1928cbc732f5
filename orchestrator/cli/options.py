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
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
