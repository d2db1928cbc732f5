"""The program of each command as its parser has it, built once per process."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from typer import BadParameter

from orchestrator.cli import build_app

MISSING = "incomplete"
"""The refusal of words that lack an argument, a value or a command."""


@cache
def program_of(command: str) -> Any:
    """The whole program, in which this command alone is loaded."""
    return build_app(command)


def words_of(line: str) -> list[str]:
    """Split the words up to a pipe, a second command or a redirection, without the brackets of what is optional."""
    split = shlex.split(re.sub(r"\[(?!0-9)|(?<!0-9)\]", "", line), comments=True)
    return list(takewhile(lambda word: word not in ("&&", "|") and not re.match(r"\d?[<>](?![A-Z])", word), split))


def refusal_of(words: Sequence[str]) -> str:
    """Return why the command line refuses these words after `orch`; empty where it takes them. Nothing runs."""
    words = [word for word in words if word not in ("--help", "-h")]
    program, left = program_of(words[0]), list(words)
    while left and left[0] in getattr(program, "commands", {}):
        program = program.commands[left.pop(0)]
    if hasattr(program, "commands") and not program.invoke_without_command:
        return f"no command {left[0]}" if left else MISSING
    try:
        program.make_context("orch", left).close()
    except BadParameter.__mro__[1] as error:  # UsageError, which Typer does not export
        is_missing = type(error).__name__ in ("MissingParameter", "BadOptionUsage", "NoArgsIsHelpError")
        return MISSING if is_missing else error.format_message()
    return ""
