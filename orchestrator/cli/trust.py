"""`orch trust`: accept a node's host key, once, after a look at it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, YesOption
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK, NodeUnreachableError, UsageError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.selection import select_nodes


def register(app: typer.Typer) -> None:
    app.command("trust", epilog="Example: orch trust alpha,beta")(trust)


def trust(
    nodes: Annotated[str | None, typer.Argument(metavar="[NODES]", help="alpha,beta; every node otherwise.")] = None,
    inventory: InventoryOption = None,
    yes: YesOption = False,
) -> int:
    """Show the host key of each node and put it on record if you accept it.

    A key that has changed is refused always: remove the old line by hand if you know why.
    """
    for spec in select_nodes(load_inventory(inventory).inventory, nodes=nodes, labels=()):
        if spec.connection == "ssh":
            _trust(spec, yes=yes)
    return EXIT_OK


def _trust(spec: NodeSpec, *, yes: bool) -> None:
    from orchestrator.nodes.host_keys import accept, fingerprint, known_key, offered_key
    from orchestrator.nodes.ssh import resolve

    address = resolve(spec)
    try:
        key = offered_key(address, spec.port)
    except OSError as error:
        raise NodeUnreachableError(f"{spec.address}:{spec.port} no answer ({error})", node=spec.name) from error
    known = known_key(address, spec.port, key.get_name())
    if known == key:
        say(f"{spec.name}: known already, {fingerprint(key)}")
        return
    if known is not None:
        raise NodeUnreachableError(
            f"its host key has CHANGED: it was {fingerprint(known)}, it now shows {fingerprint(key)}",
            node=spec.name,
            hint=f"if the machine was installed anew: ssh-keygen -R '{address}', then orch trust {spec.name}",
        )
    say(f"{spec.name} {address}:{spec.port} shows {fingerprint(key)}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to look at the key", hint=f"orch trust {spec.name} --yes")
        if not typer.confirm("Is that its key?", default=False, err=True):
            say(f"{spec.name}: not accepted")
            return
    say(f"{spec.name}: kept in {accept(address, spec.port, key)}")
