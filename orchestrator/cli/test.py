"""`orch test`: a run in miniature on the very nodes, interfaces and backend that a launch would use."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import (
    EngineOption,
    InventoryOption,
    JsonOption,
    LabelOption,
    MasterOption,
    NodesOption,
    ProfileOption,
)

EXAMPLES = """Examples:

orch test

orch test --nodes alpha,beta --backend gloo

orch test --nodes 5 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("test", epilog=EXAMPLES, no_args_is_help=False)(run_test)


def run_test(
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    label: LabelOption = None,
    backend: Annotated[str, typer.Option("--backend", help="auto (as a launch would), gloo or nccl.")] = "auto",
    profile: ProfileOption = "",
    master: MasterOption = "",
    engine: EngineOption = "",
    as_json: JsonOption = False,
) -> int:
    """Test every collective, every link and the whole way of a launch, in the training image.

    Known values are summed, spread and gathered, and compared on every rank; then each two nodes measure the way
    between them. A node that does not come along is named, and the rest is stopped. Nothing is left on the nodes.
    Exit code 0, 1 where something came out wrong, 4 where a node is out of reach.
    """
    from orchestrator.cli.launching.connectivity import run_connectivity_test
    from orchestrator.cli.launching.launch_options import LaunchOptions

    options = LaunchOptions(
        nodes=nodes, labels=tuple(label or ()), master=master, profile=profile, name="test", engine=engine
    )
    return run_connectivity_test(load_inventory(inventory).inventory, options, backend, as_json=as_json)
