"""Destinations of output: data to stdout, messages to stderr; colour only on a terminal (`NO_COLOR` is honoured by
rich).

rich is imported where something is shown in its way: it takes 30 ms.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UNBOUNDED = 100_000
"""Columns."""


def stdout() -> Console:
    """Return the console for data."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console for messages: progress, phases, notes."""
    return _console(stderr=True)


def show(view: RenderableType) -> None:
    """Print to stdout. Words are wrapped here; commands to be copied stay whole, for the terminal to wrap."""
    stdout().print(view, crop=False, soft_wrap=False)


def takes_colour() -> bool:
    """Return whether stdout may take colours: it is a terminal, or rich is asked to treat it as one."""
    return sys.stdout.isatty() or any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))


def write_plain(text: str) -> None:
    """Write a line to stdout at once, its tabs as a terminal shows them."""
    sys.stdout.write(text.expandtabs() + "\n")
    sys.stdout.flush()


def _console(*, stderr: bool) -> Console:
    """A console as wide as the terminal or $COLUMNS, and without a limit in a pipe or a file."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNBOUNDED
    return console


COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")


def colour_of(node_rank: int) -> str:
    """The same node has the same colour everywhere."""
    return COLOURS[node_rank % len(COLOURS)]
