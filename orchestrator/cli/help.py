"""Help of a command: examples as lines to paste, arguments without their Python types, narrow terminals."""

from __future__ import annotations

import shutil
from functools import partial
from textwrap import indent
from typing import Any

import typer

MOST_COLUMNS, NARROW = 80, 60


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


def _show_without_type(argument: Any) -> None:
    """Show RUN, where Typer has `RUN <str>` among the arguments and `[[RUN]]` in the usage line."""
    name, record = argument.metavar or argument.name.upper(), argument.get_help_record
    usage = [name if argument.required or name.startswith("[") else f"[{name}]"]
    argument.get_usage_pieces = lambda _context: usage
    argument.get_help_record = lambda context: (name, record(context)[1])
