"""Context of a command: the inventory, found and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import cluster_names
from orchestrator.cli.inventory_place import GIVEN, IN_FOLDER, inventory_place
from orchestrator.cli.options import InventoryOption, NodesOption
from orchestrator.cli.report import invocation, say, say_once
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory_files import HINT
from orchestrator.specs.selection import select_nodes

if TYPE_CHECKING:  # every command loads this module, also for its help and for completion
    from orchestrator.fleet.connect import Holder
    from orchestrator.nodes.interface import Node
    from orchestrator.specs.cluster import ClusterSpec
    from orchestrator.specs.inventory import Inventory, NodeSpec


WAIT_S = 600
"""Default for the time that a job for a check may wait in the queue."""


@dataclass(frozen=True, kw_only=True)
class LoadedInventory:
    """An inventory and its file."""

    inventory: Inventory
    path: Path

    def select(self, nodes: str | None) -> tuple[NodeSpec, ...]:
        """Return the nodes that `--nodes` chooses."""
        return select_nodes(self.inventory, nodes)


@dataclass(frozen=True, kw_only=True)
class ChosenNodes:
    """The options that choose nodes of an inventory."""

    inventory: InventoryOption = None
    nodes: NodesOption = None

    def load(self) -> tuple[LoadedInventory, tuple[NodeSpec, ...]]:
        """Return the inventory and the chosen nodes."""
        loaded = load_inventory(self.inventory)
        return loaded, loaded.select(self.nodes)


@dataclass(frozen=True, kw_only=True)
class CheckedNodes:
    """Connected nodes that a command checks."""

    loaded: LoadedInventory
    specs: tuple[NodeSpec, ...]
    nodes: tuple[Node, ...]
    cluster: ClusterSpec | None = None
    """The cluster that has allocated the nodes; None: they are machines of the inventory."""


@dataclass(frozen=True, kw_only=True)
class NodesToCheck(ChosenNodes):
    """The options that choose nodes of an inventory, or nodes that a cluster allocates for the time of a check."""

    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="CLUSTER",
            autocompletion=cluster_names,
            help="Check nodes of this cluster: a job holds as many as --nodes says (default: 1) until the end.",
        ),
    ] = ""
    wait: Annotated[
        int | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="With --on: how long the job may wait in the queue before it is withdrawn (default: 600).",
            show_default=False,
        ),
    ] = None

    @contextmanager
    def connected(self) -> Iterator[CheckedNodes]:
        """Yield the nodes; those of a cluster are released at the end."""
        from orchestrator.fleet.connect import connected

        if self.on:
            with self._allocated() as checked:
                yield checked
            return
        if self.wait is not None:
            raise UsageError("--wait needs --on: nodes of the inventory have no queue", hint="--on CLUSTER --wait 600")
        loaded = load_inventory(self.inventory)
        if not loaded.inventory.nodes:
            name = loaded.inventory.clusters[0].name
            hint = f"--on {name} --nodes 2   # a job of {name} holds two nodes for the check"
            raise ConfigError(f"{loaded.path} has no nodes, only clusters", hint=hint)
        specs = loaded.select(self.nodes)
        with connected(specs) as nodes:
            yield CheckedNodes(loaded=loaded, specs=specs, nodes=nodes)

    @contextmanager
    def _allocated(self) -> Iterator[CheckedNodes]:
        from orchestrator.checks.cluster_findings import NOT_CHECKED
        from orchestrator.fleet.connect import carrier_of
        from orchestrator.fleet.readiness.allocation import allocated, spec_of
        from orchestrator.nodes.call_log import logged

        number = self.nodes or "1"
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(
                f"with --on, {self.on}'s scheduler chooses the nodes: only a number of them can be given",
                hint=f"--on {quote(self.on)} --nodes 2   # certain nodes: `options: {{nodelist: …}}` of the cluster",
            )
        loaded = load_inventory(self.inventory)
        cluster = loaded.inventory.cluster(self.on)
        carrier = carrier_of(cluster)
        try:
            wait_s = WAIT_S if self.wait is None else self.wait
            with allocated(carrier, int(number), wait_s=wait_s, tell=say) as allocation:
                nodes = allocation.nodes()
                specs = tuple(spec_of(cluster, node.name, node.host) for node in nodes)
                say(NOT_CHECKED.format(cluster=cluster.name))
                yield CheckedNodes(loaded=loaded, specs=specs, nodes=tuple(map(logged, nodes)), cluster=cluster)
        finally:
            carrier.login.close()


def load_inventory(path: Path | None) -> LoadedInventory:
    """Read the inventory: `-i`, otherwise $ORCH_INVENTORY, ./inventory.yaml, or the lab's while one is up."""
    from orchestrator.lab.state import inventory_file

    found, origin = inventory_place(path)
    if origin == GIVEN and found.is_file() and found != inventory_file():
        invocation.current.inventory = found  # for the lines to paste
    elif not origin:
        say_once("nodes: those of the lab")
    elif found == IN_FOLDER and inventory_file().exists():
        say_once(f"nodes: those of {found}; the lab's: -i {quote(str(inventory_file()))}")
    if not found.exists():
        raise ConfigError(f"no {found} {origin}", hint=HINT)
    from orchestrator.specs.inventory_files.inventory_file import read_inventory

    if inside := next((file for file in sorted(found.iterdir()) if file.is_file()), None) if found.is_dir() else None:
        raise ConfigError(f"{found} is a folder; expected a file {origin}".rstrip(), hint=f"-i {quote(str(inside))}")
    loaded = LoadedInventory(inventory=_of_other_program(found) or read_inventory(found), path=found)
    getLogger("orch").info("inventory %s: %s", found, loaded.inventory)
    return loaded


def _of_other_program(file: Path) -> Inventory | None:
    """Nodes of an inventory of Ansible or another program, and notes on what they cannot hold; None where the file is
    none."""
    from orchestrator.specs.inventory_files.ansible_host import UNUSED
    from orchestrator.specs.inventory_files.ansible_inventory import is_ansible, is_ours, read_ansible
    from orchestrator.specs.inventory_files.ansible_vars import variables_beside
    from orchestrator.specs.inventory_files.foreign_file import from_foreign_file
    from orchestrator.specs.inventory_files.inventory_file import parse_inventory
    from orchestrator.specs.inventory_files.inventory_import import inventory_text
    from orchestrator.specs.inventory_files.inventory_yaml import read_file

    text = read_file(file).decode("utf-8-sig", errors="replace")
    if is_ours(text):
        return None
    found = from_foreign_file(text, filename=str(file))
    if found is None and is_ansible(text, filename=str(file)):
        found = read_ansible(text, filename=str(file), beside=variables_beside(file))
    if found is None:
        return None
    converted, notes = inventory_text(found, source=str(file))
    for note in notes:
        if not note.startswith(UNUSED):
            say_once(f"note: {file}: {note}")
    return parse_inventory(converted, filename=str(file))


def known_nodes(path: Path | None, run: str | None, nodes: str | None = None) -> tuple[Holder, ...]:
    """Return the nodes of the inventory that `nodes` selects, or all nodes and clusters; none where the inventory is
    gone but this computer has a record of the run (of any run, where `run` is None)."""
    from orchestrator.store.run_record import records_meant

    try:
        loaded = load_inventory(path)
        return loaded.inventory.holders if nodes is None else loaded.select(nodes)
    except ConfigError as error:
        if path or invocation.current.inventory or nodes is not None or error.problems or not records_meant(run):
            raise
        say(f"note: {error.message}; no node is asked, only the records on this computer are read")
        return ()
