"""The program of each command as its parser has it, built once per process."""

from __future__ import annotations

from functools import cache
from typing import Any

from orchestrator.cli import build_app


@cache
def program_of(command: str) -> Any:
    """The whole program, in which this command alone is loaded."""
    return build_app(command)
