"""`orch inventory`: list, show and check the machines, and import them from other tools' files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer

from orchestrator.cli.options import InventoryOption, JsonOption, LabelOption, NodesOption, OutputFormat, OutputOption
from orchestrator.cli.report import write_json, write_line, write_names
from orchestrator.render.printable import counted

IMPORT_EXAMPLES = """\
orch inventory import ~/.ssh/config --only 'lab-*' --output inventory.yaml
orch inventory import hosts.yml --output inventory.yaml
orch inventory import hostfile --user ana
orch inventory import 'node[01-05]'
"""


class SourceFormat(str, Enum):
    """Formats that `import` can read."""

    AUTO = "auto"
    SSH_CONFIG = "ssh-config"
    ANSIBLE = "ansible"  # YAML, INI, or the JSON of `ansible-inventory --list`
    HOSTFILE = "hostfile"
    HOSTLIST = "hostlist"


GROUP = typer.Typer(
    help="List, show, validate and import the machines.",
    epilog="orch inventory import ~/.ssh/config --output inventory.yaml\norch inventory list",
    no_args_is_help=True,
)


@GROUP.command("list", epilog="orch inventory list --label room=lab\norch inventory list -o wide")
def list_nodes(
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    label: LabelOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the machines in rank order."""
    from orchestrator.cli.context import load_inventory
    from orchestrator.render.console import show
    from orchestrator.render.inventory_table import nodes_table

    loaded = load_inventory(inventory)
    chosen = loaded.select(nodes, label)
    if as_json:
        write_json([node.model_dump(mode="json") for node in chosen])
    elif output is OutputFormat.NAME:
        write_names(node.name for node in chosen)
    else:
        show(nodes_table(chosen, wide=output is OutputFormat.WIDE))


@GROUP.command(epilog="orch inventory show alpha")
def show(
    node: str | None = typer.Argument(None, metavar="[NODE]", help="Name of a node (default: all)."),
    inventory: InventoryOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every key of a machine, including defaults."""
    from orchestrator.cli.context import load_inventory
    from orchestrator.render import console
    from orchestrator.render.inventory_table import node_table

    loaded = load_inventory(inventory)
    chosen = loaded.select(node)
    if as_json:
        dumped = [one.model_dump(mode="json") for one in chosen]
        write_json(dumped if node is None else dumped[0])
        return
    if output is OutputFormat.NAME:
        write_names(one.name for one in chosen)
        return
    for number, one in enumerate(chosen):
        if number:
            write_line()
        console.show(node_table(one))


@GROUP.command(epilog="orch inventory validate -i lab.yaml")
def validate(inventory: InventoryOption = None) -> None:
    """Check the inventory and report all its problems.

    Each problem is shown with its line and the expected value. Exit code 3 if there are any, otherwise 0.
    """
    from orchestrator.cli.context import load_inventory

    loaded = load_inventory(inventory)
    write_line(f"{loaded.path}: {counted(len(loaded.inventory.nodes), 'node')}, no problems")


@GROUP.command("import", epilog=IMPORT_EXAMPLES)
def import_nodes(
    source: str = typer.Argument(metavar="SOURCE", help="A file, - for stdin, or names such as node[01-05]."),
    kind: SourceFormat = typer.Option(
        SourceFormat.AUTO, "--from", metavar="FORMAT", help="auto, ssh-config, ansible, hostfile or hostlist."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", metavar="FILE", help="File to write (default: stdout)."),
    names: list[str] | None = typer.Option(
        None, "--only", metavar="PATTERN", help="Only machines with matching names, such as 'lab-*'. Repeatable."
    ),
    user: str | None = typer.Option(None, metavar="NAME", help="SSH user for machines without one."),
    force: bool = typer.Option(False, "--force", help="Overwrite the file."),
) -> None:
    """Convert an SSH configuration, Ansible inventory, hostfile or list of names to an inventory.

    Reads ~/.ssh/config, an Ansible inventory (YAML, INI or JSON), a DeepSpeed hostfile, or names such as node[01-05].
    Entries that cannot be converted are reported on stderr.
    """
    from orchestrator.cli.inventory_source import read_source, write_new
    from orchestrator.cli.report import say
    from orchestrator.specs.inventory_files.inventory_import import inventory_text, only

    text, notes = inventory_text(only(read_source(source, kind.value), names or ()), source=source, user=user)
    for note in notes:
        say(f"note: {note}")
    if output is None:
        write_line(text.rstrip())
        return
    write_new(output, text, force=force)
    say(f"wrote {output}; next: orch inventory list -i {output}")


@GROUP.command(epilog="orch inventory schema > inventory.schema.json")
def schema() -> None:
    """Print the JSON Schema of inventory.yaml, for editors."""
    from orchestrator.specs.inventory_files.inventory_schema import schema_text

    write_line(schema_text().rstrip())
