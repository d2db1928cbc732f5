"""How a command ends: its error as a message on stderr, and the exit code."""

from __future__ import annotations

import sys

from orchestrator.specs.errors import ConfigError, OrchError


def report_error(error: OrchError) -> int:
    """Write what happened, where, and what to do next; the exit code of its class."""
    sys.stderr.write(f"error: {error}\n")
    if isinstance(error, ConfigError):
        for problem in error.problems:
            sys.stderr.write(f"  {problem}\n")
    if error.hint:
        sys.stderr.write(f"  → {error.hint}\n")
    return error.exit_code


def say(text: str) -> None:
    """Talk goes to stderr; stdout is for data."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
