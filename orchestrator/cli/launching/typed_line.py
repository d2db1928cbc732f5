"""The line that was typed, with a change that a message proposes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.cli.report import invocation
from orchestrator.specs.launch_options import LaunchOptions


def typed_line(options: LaunchOptions, program: Sequence[str], workdir: str = "") -> str:
    """Return the line of this launch with other words after `--`, and another folder of the code where one is given."""
    words = ["orch", *_before_program(options)]
    if workdir and "--workdir" in words:
        place = words.index("--workdir")
        del words[place : place + 2]
    words = [word for word in words if not (workdir and word.startswith("--workdir="))]
    return shlex.join([*words, *(("--workdir", workdir) if workdir else ()), "--", *program])


def _before_program(options: LaunchOptions) -> list[str]:
    """Words of the command line before the program; without one, as in a call from Python, a launch."""
    words, program = list(invocation.current.words), list(options.command)
    if "--" in words:
        return words[: words.index("--")]
    return words[: -len(program)] if program and words[-len(program) :] == program else ["launch"]
