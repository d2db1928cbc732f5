"""How a command ends: its error as a message on stderr, and the exit code."""

from __future__ import annotations

import sys

from orchestrator.render.printable import printable
from orchestrator.specs.errors import ConfigError, OrchError


def report_error(error: OrchError) -> int:
    """Write what happened, where, and what to do next; the exit code of its class."""
    say(f"error: {error}")
    if isinstance(error, ConfigError):
        for problem in error.problems:
            say(f"  {problem}")
    if error.hint:
        say(f"  → {error.hint}")
    return error.exit_code


def say(text: str) -> None:
    """Talk goes to stderr; stdout is for data. What nodes said may be part of it."""
    sys.stderr.write("".join(f"{printable(line)}\n" for line in text.split("\n")))
    sys.stderr.flush()
