"""`orch shell`: log in to a node of the inventory."""

from __future__ import annotations

import os

import typer

from orchestrator.cli.completion import node_names
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption
from orchestrator.specs.errors import ConfigError, UsageError

EXAMPLES = """\
orch shell gamma
orch shell gamma --container
"""


def shell(
    node: str = typer.Argument(metavar="NODE", autocompletion=node_names, help="Name of the node."),
    container: bool = typer.Option(False, "--container", help="Inside the container of the run that holds the node."),
    inventory: InventoryOption = None,
) -> None:
    """Open a shell on a node, with the address, user, key and jump host of the inventory.

    An unknown or changed host key is refused. To run one command: orch exec NODE -- COMMAND
    """
    from orchestrator.nodes.ssh_command import ssh_command
    from orchestrator.plan.container import LOCK_NAME

    specs = {spec.name: spec for spec in load_inventory(inventory).inventory.nodes}
    if node not in specs:
        raise ConfigError(f"the inventory has no node {node}: {', '.join(specs)}", hint="orch inventory list")
    spec = specs[node]
    inside = ("docker", "exec", "-it", LOCK_NAME, "bash") if container else ()
    if spec.engine == "process" and container:
        raise UsageError(f"{node} is a set of processes of this computer: it has no container")
    if spec.engine == "process" or spec.connection == "local":
        argv: tuple[str, ...] = inside or (os.environ.get("SHELL", "sh"),)
    else:
        argv = ssh_command(spec, inside, terminal=container)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # this process becomes ssh: terminal, signals and exit code are its own
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {argv[0]} on this computer", hint="sudo apt-get install openssh-client"
        ) from None
