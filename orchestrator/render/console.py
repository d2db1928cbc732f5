"""Where output goes: data to stdout, talk to stderr; colour only on a terminal (`NO_COLOR` is honoured by rich)."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

UNBOUNDED = 100_000
"""Columns."""


def stdout() -> Console:
    """For data."""
    return Console(highlight=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table to stdout: as wide as its cells where nothing says how wide the output is, as in a pipe."""
    console = stdout()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNBOUNDED
    console.print(table)


def stderr() -> Console:
    """For talk: progress, phases, notes."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")


def colour_of(node_rank: int) -> str:
    """The same node has the same colour everywhere."""
    return COLOURS[node_rank % len(COLOURS)]
