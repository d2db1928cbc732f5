"""Output of torchrun's agent when a rank ends: its log, a traceback of its own and a summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contract.failures.tracebacks import begins

_RULER = re.compile(r"={8,}$")
"""The first and the last line of the summary."""
_RANK = re.compile(r"\s+rank\s+: ([0-9]{1,9})")
_EXIT_CODE = re.compile(r"\s+exitcode\s+: (-?[0-9]{1,9})")
_SUMMARY_LINES = 12
"""Lines after `Root Cause` in which rank and exit code stand."""
_LOG = re.compile(r"[WEIF][0-9]{4} [0-9:.]{8,20} [0-9]{1,12} \S{1,200}\] ?(.*)")
_OWN_ERROR = re.compile(r"(?:torch\.distributed\.elastic\.multiprocessing\.errors\.)?ChildFailedError:")


@dataclass(frozen=True, kw_only=True)
class FirstFailure:
    """The rank that failed first on a node."""

    rank: int
    exit_code: int
    """Negative: ended by that signal."""


def first_failure(lines: Sequence[str]) -> FirstFailure | None:
    """Read the summary's `Root Cause`; `Failures`, which stands before it, names those that failed later."""
    for number, line in enumerate(lines):
        if line.startswith("Root Cause "):
            below = lines[number + 1 : number + _SUMMARY_LINES]
            rank = next((found for text in below if (found := _RANK.match(text))), None)
            code = next((found for text in below if (found := _EXIT_CODE.match(text))), None)
            if rank and code:
                return FirstFailure(rank=int(rank[1]), exit_code=int(code[1]))
    return None


def log_text(line: str) -> str | None:
    """The text of a line of torchrun's own log; None where it is another line."""
    found = _LOG.match(line)
    return found[1] if found else None


def is_ruler(line: str) -> bool:
    return bool(_RULER.match(line))


def is_own_error(line: str) -> bool:
    """Return whether this is the error that torchrun raises when a rank has failed: it says nothing about the
    reason."""
    return bool(_OWN_ERROR.match(line))


def without_summary(lines: Sequence[str]) -> Iterator[str]:
    """Leave out the summary, and the traceback of the error that brings it."""
    held: list[str] = []
    in_summary = False
    for line in lines:
        if in_summary or is_ruler(line):
            in_summary ^= is_ruler(line)
        elif held and is_own_error(line):
            held = []
        elif begins(line):
            yield from held
            held = [line]
        elif held and line.startswith(" "):
            held.append(line)
        else:
            yield from held
            held = []
            yield line
    yield from held
