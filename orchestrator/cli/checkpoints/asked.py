"""Answers of the nodes about their checkpoints, and words that the checkpoint commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.report import say
from orchestrator.render.printable import counted
from orchestrator.specs.errors import ConfigError, PreflightError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.nodes.interface import Node
    from orchestrator.specs.checkpoint import CheckpointCopy
    from orchestrator.specs.errors import OrchError
    from orchestrator.specs.inventory import Inventory

RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="Run id, or its first characters (default: the run with the newest checkpoint)."
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", min=0, metavar="N", help="Step of the checkpoint (default: the newest intact one)."),
]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Answers of the nodes about their checkpoints."""

    inventory: Inventory
    nodes: Sequence[Node]
    places: Mapping[str, str]
    """The project's folder on each of them."""
    held: Sequence[CheckpointCopy]
    unreachable: Mapping[str, OrchError]

    def node(self, name: str) -> Node:
        """The one of this name, which must have answered."""
        known = {node.name: node for node in self.nodes}
        if name in self.unreachable:
            raise self.unreachable[name]
        if name not in known:
            raise ConfigError(f"there is no node {name} in the inventory", hint=f"--to one of {', '.join(known)}")
        return known[name]

    def of(self, run: str | None) -> tuple[str, list[CheckpointCopy]]:
        """The run meant, and its checkpoints."""
        from orchestrator.plan.checkpoints import run_meant

        chosen = run_meant(self.held, run or "")
        return chosen, [one for one in self.held if one.run_id == chosen]


@contextmanager
def asked_nodes(inventory: Path | None, run: str | None) -> Iterator[Asked]:
    """The nodes that hold this run, or otherwise those of the whole inventory, asked what they have."""
    from orchestrator.fleet.checkpoints.survey import places_in, survey
    from orchestrator.fleet.connect import connected_for

    loaded = load_inventory(inventory).inventory
    places = places_in(loaded.nodes, loaded.project)
    with connected_for(loaded.nodes, run) as reached:
        nodes = [node for node in reached if node.name in places]
        found = survey(nodes, places, run or "")
        for error in found.unreachable.values():
            note(error)
        if nodes and len(found.unreachable) == len(nodes):
            raise PreflightError("none of the nodes answered", hint="orch doctor")
        yield Asked(inventory=loaded, nodes=nodes, places=places, held=found.held, unreachable=found.unreachable)


def hashed(nodes: Sequence[Node], held: Sequence[CheckpointCopy], *, as_json: bool) -> Sequence[CheckpointCopy]:
    from orchestrator.fleet.checkpoints.survey import verify as hash_all

    if held and not as_json:
        say(f"hashing {counted(len(held), 'checkpoint')}, {sum(one.size for one in held) / 1e6:.1f} MB, on the nodes")
    return hash_all(nodes, held)


def note(error: OrchError) -> None:
    say(f"note: {error}")
