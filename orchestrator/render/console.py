"""Where output goes: data to stdout, talk to stderr; colour only on a terminal (`NO_COLOR` is honoured by rich)."""

from __future__ import annotations

import re

from rich.console import Console

_UNPRINTABLE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # escape sequences: colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles and links
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # what is left of control characters, but tab and newline
)


def stdout() -> Console:
    """For data."""
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    """For talk: progress, phases, notes."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Without what would move the cursor or change the terminal: a log comes from another machine."""
    return _UNPRINTABLE.sub("", text.rsplit("\r", 1)[-1])


COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")


def colour_of(node_rank: int) -> str:
    """The same node has the same colour everywhere."""
    return COLOURS[node_rank % len(COLOURS)]
