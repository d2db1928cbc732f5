"""`orch test`: a run in miniature on the very nodes, interfaces and backend that a launch would use."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch test
orch test --nodes alpha,beta --backend gloo
orch test --nodes 5 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("test", epilog=EXAMPLES, no_args_is_help=False)(run_test)


@expand(only=("nodes", "labels", "master", "profile", "engine"))
def run_test(
    options: LaunchOptions,
    inventory: InventoryOption = None,
    backend: Annotated[str, typer.Option("--backend", help="auto (as a launch would), gloo or nccl.")] = "auto",
    as_json: JsonOption = False,
) -> int:
    """Test every collective, every link and the whole way of a launch, in the training image.

    Known values are summed, spread and gathered, and compared on every rank; then each two nodes measure the way
    between them. A node that does not come along is named, and the rest is stopped. Nothing is left on the nodes.
    Exit code 0, 1 where something came out wrong, 4 where a node is out of reach.
    """
    from orchestrator.cli.launching.connectivity import run_connectivity_test

    loaded = load_inventory(inventory).inventory
    return run_connectivity_test(loaded, replace(options, name="test"), backend, as_json=as_json)
