"""Help of a command: examples as lines to paste, arguments without their Python types, narrow terminals."""

from __future__ import annotations

import shutil
from functools import partial
from textwrap import indent
from typing import Any

import typer

MOST_COLUMNS, NARROW = 80, 60
SHORT = 20
"""Options of a command that are read as one list; more are shown in groups."""
OPTION_GROUPS = {
    "Nodes": "--nodes --label --on --engine --master --master-port --min-nodes --node-timeout --inventory",
    "Code and data": "--workdir --data --shard --fetch-once --offline --mount",
    "Image and environment": "--profile --image --env --secret",
    "Restarts and checkpoints": "--resume --checkpoint --max-restarts --hang-timeout --sync-outputs --no-sync-outputs"
    " --checkpoint-copies --independent --no-warm-start",
    "Start": "--name --dry-run --forecast --detach --no-supervise --yes",
}
"""Options of commands that start runs, by what they are about."""


def width() -> int:
    """Columns of help texts."""
    return min(shutil.get_terminal_size().columns, MOST_COLUMNS) - 2


class _Context(typer.Context):
    """A context whose help, on a narrow terminal, has more room for texts than for options."""

    def make_formatter(self) -> Any:
        formatter: Any = super().make_formatter()
        if formatter.width < NARROW:
            formatter.write_dl = partial(formatter.write_dl, col_max=8)
        return formatter


def plain_help(command: Any) -> None:
    """Prepare the help of a command of Typer's, whose epilog, if it begins with `orch`, is a list of examples."""
    command.context_class = _Context
    command.short_help = command.get_short_help_str(1000).removesuffix(".")
    if (command.epilog or "").startswith("orch "):
        command.epilog = "\b\nExamples:\n" + indent(command.epilog, "  ")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _show_without_type(parameter)
    if sum(parameter.param_type_name == "option" for parameter in command.params) > SHORT:
        command.format_options = partial(_write_in_groups, command)


def _write_in_groups(command: Any, context: Any, formatter: Any) -> None:
    """Write the arguments, then the options in groups, and last those of every command."""
    groups: dict[str, list[Any]] = {title: [] for title in ("Arguments", *OPTION_GROUPS, "Options")}
    of_option = {option: title for title, options in OPTION_GROUPS.items() for option in options.split()}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            title = next((of_option[name] for name in parameter.opts if name in of_option), "Options")
            groups["Arguments" if parameter.param_type_name == "argument" else title].append(record)
    for title, records in groups.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _show_without_type(argument: Any) -> None:
    """Show RUN, where Typer has `RUN <str>` among the arguments and `[[RUN]]` in the usage line."""
    name, record = argument.metavar or argument.name.upper(), argument.get_help_record
    usage = [name if argument.required or name.startswith("[") else f"[{name}]"]
    argument.get_usage_pieces = lambda _context: usage
    argument.get_help_record = lambda context: (name, record(context)[1])
