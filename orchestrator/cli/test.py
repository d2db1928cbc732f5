"""`orch test`: a short run on the nodes, interfaces and backend that a launch would use."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import InventoryOption, Output
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch test
orch test --nodes alpha,beta --backend gloo
orch test --nodes 5 --json
"""


@expand(only=("nodes", "master", "profile", "engine", "output", "as_json"))
def test(
    *,
    options: LaunchOptions,
    inventory: InventoryOption = None,  # noqa: PT028  # a command, no test
    backend: str = typer.Option("auto", metavar="auto|gloo|nccl", help="auto: the backend a launch would use."),  # noqa: PT028
    output: Output,
) -> int:
    """Test all collectives and all links in the training image, with the settings of a launch.

    Every rank runs each collective on known values and checks the result; then every pair of nodes measures its link.
    If a node does not join, it is named and the others are stopped. Nothing is left on the nodes. On a
    cluster: orch launch --on CLUSTER --nodes 2 -- test-ddp
    Exit code 0: passed; 1: a result was wrong; 4: a node is out of reach.
    """
    from orchestrator.cli.launching.connectivity import run_connectivity_test

    options = replace(options, name="test")
    return run_connectivity_test(load_inventory(inventory).inventory, options, backend, output)
