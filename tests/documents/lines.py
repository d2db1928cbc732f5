"""Command lines of the documents: blocks marked `sh` or `console`, what `console` blocks show as printed, and marks.

A line that cannot run on a lab of processes has its reason in a comment before its block, which no reader sees:

    <!-- not run here: needs Docker -->
    <!-- not run here: needs Docker: orch build, orch setup; changes this computer: sudo -->

The first form marks every line of the block, the second those that begin so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
"""Documents without examples/, whose lines tests/recipes runs."""
REASONS = re.compile(
    r"needs (?:a card|a cluster|Docker|the Internet|another machine|another program|a machine with this fault)"
    r"|changes this computer|takes longer than \d+ minutes?"
)
_BLOCK = re.compile(r"^(?:<!-- not run here: ([^\n]+?) -->\n)?```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Line:
    """A command line as a document has it."""

    document: str
    command: str
    reason: str
    """Reason why it is not run; empty for a line that is."""
    shown: tuple[str, ...] = ()
    """Lines that the document shows as its output."""

    @property
    def fails(self) -> bool:
        """True if the document shows that the command ends in an error."""
        return any(line.startswith("error: ") for line in self.shown)


def lines_of(document: Path) -> list[Line]:
    """Every command line of a document. ValueError: a mark has a reason that is not listed, or marks no line."""
    return lines_in(str(document.relative_to(ROOT)), document.read_text("utf-8"))


def lines_in(document: str, text: str) -> list[Line]:
    """Every command line of a document's text."""
    blocks = [(mark, list(_commands(language, block))) for mark, language, block in _BLOCK.findall(text)]
    return [line for mark, commands in blocks for line in _marked(document, mark, commands)]


def hidden_commands(document: Path) -> list[str]:
    """Command lines in blocks that are marked neither `sh` nor `console`, where nothing looks for them."""
    return [
        line
        for _, language, block in _BLOCK.findall(document.read_text("utf-8"))
        for line in block.splitlines()
        if language == "" and line.startswith(("orch ", "python -m ", "$ "))
    ]


def _commands(language: str, block: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each command with what follows it in the block. A block that begins with `#!` is a script to save."""
    if language == "console":
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *shown = part.replace("\\\n", "").splitlines()
            yield command, tuple(shown)
    elif language == "sh" and not block.startswith("#!"):
        command = ""
        for line in block.replace("\\\n", "").splitlines():
            command += line
            if _is_whole(command):
                yield command, ()
                command = ""
            else:
                command += "\n"


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def _marked(document: str, mark: str, commands: list[tuple[str, tuple[str, ...]]]) -> Iterator[Line]:
    reasons: dict[str, str] = {}
    for part in mark.split("; ") if mark else ():
        reason, _, starts = part.partition(": ")
        if not REASONS.fullmatch(reason):
            raise ValueError(f"{document}: no listed reason: {reason}")
        reasons |= dict.fromkeys(starts.split(", "), reason)
    unused = [start for start in reasons if not any(command.startswith(start) for command, _ in commands)]
    if unused:
        raise ValueError(f"{document}: marked, and not a line of the block: {unused}")
    for command, shown in commands:
        fitting = max((start for start in reasons if command.startswith(start)), key=len, default=None)
        yield Line(document, command, "" if fitting is None else reasons[fitting], shown)
