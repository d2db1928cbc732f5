"""Where output goes: data to stdout, talk to stderr; colour only on a terminal (`NO_COLOR` is honoured by rich)."""

from __future__ import annotations

from rich.console import Console


def stdout() -> Console:
    """For data."""
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    """For talk: progress, phases, notes."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")


def colour_of(node_rank: int) -> str:
    """The same node has the same colour everywhere."""
    return COLOURS[node_rank % len(COLOURS)]
