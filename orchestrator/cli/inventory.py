"""`orch inventory`: list, show and check the machines, and import them from other tools' files."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import ChosenNodes, load_inventory
from orchestrator.cli.flags import CommandGroup
from orchestrator.cli.options import InventoryOption, Output
from orchestrator.cli.report import say, write_line
from orchestrator.render.printable import counted
from orchestrator.specs.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from orchestrator.specs.inventory_files.inventory_import import ImportedInventory

IMPORT_EXAMPLES = """\
orch inventory import ~/.ssh/config --only 'lab-*' --output inventory.yaml
orch inventory import hosts.yml --output inventory.yaml
orch inventory import hostfile --user ana
orch inventory import 'node[01-05]'
"""


class SourceFormat(StrEnum):
    """Formats that `import` can read."""

    AUTO = "auto"
    SSH_CONFIG = "ssh-config"
    ANSIBLE = "ansible"  # YAML, INI, or the JSON of `ansible-inventory --list`
    HOSTFILE = "hostfile"
    HOSTLIST = "hostlist"


_SSH_HOST = re.compile(r"^\s*(host|match)\b[ \t=]+\S", re.IGNORECASE | re.MULTILINE)
_SSH_KEYWORD = re.compile(
    r"\s*(include|hostname|user|port|identity\w*|proxy\w+|forward\w+|control\w+|server\w+|stricthost\w+|user\w+|"
    r"addkeys\w+|compression|ciphers|macs|kex\w+|hostkey\w*|pubkey\w+|preferred\w+|sendenv|setenv|loglevel|"
    r"connect\w+|tcpkeepalive|addressfamily|batchmode|hash\w+|visual\w+|canonical\w+|usekeychain)[ \t=]+\S.*",
    re.IGNORECASE,
)
"""A configuration may consist of settings for all hosts, or of `Include` alone."""
GROUP = CommandGroup(
    help="List, show, validate and import the machines.",
    epilog="orch inventory import ~/.ssh/config --output inventory.yaml\norch inventory list",
    no_args_is_help=True,
)


@GROUP.command("list", epilog="orch inventory list -n room=lab\norch inventory list -o wide")
def list_nodes(chosen: ChosenNodes, output: Output) -> None:
    """List the machines in rank order."""
    from orchestrator.render.inventory_table import nodes_table

    _, nodes = chosen.load()
    data = [node.model_dump(mode="json") for node in nodes]
    output.write(data, [node.name for node in nodes], nodes_table(nodes, wide=output.wide))


@GROUP.command(epilog="orch inventory show alpha")
def show(
    *,
    node: str | None = typer.Argument(None, metavar="[NODE]", help="Name of a node (default: all)."),
    inventory: InventoryOption = None,
    output: Output,
) -> None:
    """Show every key of a machine, including defaults."""
    from rich.console import Group
    from rich.text import Text

    from orchestrator.render.inventory_table import node_table

    nodes = load_inventory(inventory).select(node)
    data = [one.model_dump(mode="json") for one in nodes]
    tables = [part for one in nodes for part in (Text(), node_table(one))]
    output.write(data[0] if node else data, [one.name for one in nodes], Group(*tables[1:]))


@GROUP.command(epilog="orch inventory validate -i lab.yaml")
def validate(inventory: InventoryOption = None) -> None:
    """Check the inventory and report all its problems.

    Each problem is shown with its line and the expected value. Exit code 3 if there are any, otherwise 0.
    """
    loaded = load_inventory(inventory)
    clusters = loaded.inventory.clusters
    also = f" and {counted(len(clusters), 'cluster')}" if clusters else ""
    write_line(f"{loaded.path}: {counted(len(loaded.inventory.nodes), 'node')}{also}, no problems")


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
    from orchestrator.specs.inventory_files.inventory_import import inventory_text, only

    text, notes = inventory_text(only(_read_source(source, kind.value), names or ()), source=source, user=user)
    for note in notes:
        say(f"note: {note}")
    if output is None:
        write_line(text.rstrip())
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{output} is there already; nothing was written", hint="--force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    say(f"wrote {output}; next: orch inventory list -i {output}")


@GROUP.command(epilog="orch inventory schema > inventory.schema.json")
def schema() -> None:
    """Print the JSON Schema of inventory.yaml, for editors."""
    from orchestrator.specs.inventory_files.inventory_schema import schema_text

    write_line(schema_text().rstrip())


def _read_source(source: str, kind: str) -> ImportedInventory:
    """Return the machines of a file, of stdin (`-`) or of a hostlist."""
    from orchestrator.specs.inventory_files.foreign_file import from_foreign_file
    from orchestrator.specs.inventory_files.inventory_import import from_hostfile, from_hostlist
    from orchestrator.specs.inventory_files.inventory_yaml import read_file

    path = Path(source).expanduser()
    if kind == "hostlist" or (kind == "auto" and source != "-" and not path.exists()):
        if kind == "auto" and ("/" in source or source.endswith((".yml", ".yaml", ".txt"))):
            raise ConfigError(f"no file {source}", hint="give a file, - for stdin, or names such as node[01-05]")
        return from_hostlist(source)
    content = sys.stdin.buffer.read() if source == "-" else read_file(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not UTF-8 text") from None
    if kind == "auto":
        if foreign := from_foreign_file(text, filename=source):
            return foreign
        kind = guessed(text)
    if kind == "ssh-config":
        from orchestrator.nodes.ssh_hosts import from_ssh_config

        return from_ssh_config(text, home=Path.home(), included=source != "-")
    if kind in ("ansible", "ansible-ini"):
        from orchestrator.specs.inventory_files.ansible_inventory import INI, YAML_GROUP, from_ansible, from_ansible_ini
        from orchestrator.specs.inventory_files.ansible_vars import variables_beside

        ini = kind == "ansible-ini" or (not YAML_GROUP.search(text) and INI.search(text))
        beside = None if source == "-" else variables_beside(path)
        return (from_ansible_ini if ini else from_ansible)(text, filename=source, beside=beside)
    return from_hostfile(text, filename=source)


def guessed(text: str) -> str:
    """Return the kind of a file by its text; hostfile unless a pattern of another kind matches."""
    from orchestrator.specs.inventory_files.ansible_inventory import INI, YAML_GROUP

    if INI.search(text):
        return "ansible-ini"
    if _SSH_HOST.search(text):
        return "ssh-config"
    if YAML_GROUP.search(text):
        return "ansible"
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(map(_SSH_KEYWORD.fullmatch, lines)):
        return "ssh-config"
    return "hostfile"
