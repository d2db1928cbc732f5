"""Python tracebacks in the lines of a process: the exception that ended it, and the place in the user's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from contract.log_lines import EVENT_MARK

LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<|^/opt/venv/")
"""A file that is not the user's."""
MESSAGE_LINES = 12
"""Lines kept of an exception's message: the differences of a state_dict can be hundreds."""
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>[0-9]+)(?:, in (?P<function>.+))?$')
_UNREADABLE_SCRIPT = re.compile(r'\s+File "[^"]+", line [0-9]+$')
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_ASIDE = re.compile(r"Exception (?:ignored )?in")
"""A destructor or a thread: the process continues after its exception."""
_LOG_LINE = re.compile(r"\[?[WEIF][0-9]{3,4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]+ ")
"""A line of torch's own log."""


@dataclass(frozen=True, kw_only=True)
class UncaughtException:
    """The exception that ended a process."""

    message: tuple[str, ...]
    """`Error: message`, of one or more lines."""
    earlier: tuple[str, ...] = ()
    """Messages of the exceptions that it was raised from, or while they were handled; the first one first."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`, the innermost outside of installed libraries."""
    source: str = ""
    """The code at that place; empty where the traceback shows none."""


def begins(line: str) -> bool:
    """Return whether a traceback begins here. A progress bar may stand before it in the same line."""
    return _BEGIN in line


def chained(line: str) -> bool:
    """Return whether the exception above led to the one below this line."""
    return bool(_CHAINED.match(line.lstrip()))


def is_torch_log(line: str) -> bool:
    return bool(_LOG_LINE.match(line))


def uncaught_exception(lines: Sequence[str]) -> UncaughtException | None:
    """The last exception of these lines, apart from those of destructors and threads; None where there is none."""
    starts = [number for number, line in enumerate(lines) if begins(line)]
    asides = {number for number in starts if any(_ASIDE.match(line) for line in lines[max(0, number - 1) : number + 1])}
    starts = [number for number in starts if number not in asides]
    if not starts:  # a script that cannot be parsed has a place and no traceback
        return _unreadable_script(lines)
    first = len(starts) - 1  # of the chain that ends with the last one
    while first and any(map(chained, lines[starts[first - 1] : starts[first]])):
        first -= 1
    ends = [*starts[first + 1 :], min((number for number in asides if number > starts[-1]), default=len(lines))]
    blocks = [lines[start:end] for start, end in zip(starts[first:], ends, strict=True)]
    frame, source = _frame(blocks[-1])
    return UncaughtException(
        message=_message(blocks[-1]),
        earlier=tuple(line for block in blocks[:-1] for line in _message(block)),
        frame=frame,
        source=source,
    )


def _unreadable_script(lines: Sequence[str]) -> UncaughtException | None:
    at = next((number for number, line in enumerate(lines) if _UNREADABLE_SCRIPT.match(line)), None)
    if at is None:
        return None
    block = ["", *lines[at:]]
    return UncaughtException(message=_message(block), frame=_frame(block)[0])


def _message(block: Sequence[str]) -> tuple[str, ...]:
    """Read the message from the first line after the frames, which is not indented as they are, to its end."""
    indent = len(block[0]) - len(block[0].lstrip())
    body = [line[indent:] for line in block[1:]]
    start = next((number for number, line in enumerate(body) if line.strip() and not line.startswith(" ")), len(body))
    message: list[str] = []
    for line in body[start:]:
        if len(message) == MESSAGE_LINES or _ends_message(line):
            break
        if line.strip():
            message.append(line)
    return tuple(message)


def _ends_message(line: str) -> bool:
    return chained(line) or bool(_ASIDE.match(line)) or is_torch_log(line) or line.startswith(EVENT_MARK)


def _frame(block: Sequence[str]) -> tuple[str, str]:
    """The innermost place outside of installed libraries, otherwise the innermost of all; and its code."""
    frames = [(number, found) for number, line in enumerate(block) if (found := _FRAME.match(line))]
    if not frames:
        return "", ""
    number, at = next(((n, frame) for n, frame in reversed(frames) if not LIBRARY.search(frame["file"])), frames[-1])
    below = "".join(block[number + 1 : number + 2])
    place = f"{at['file']}:{at['line']}" + (f" in {at['function']}" if at["function"] else "")
    return place, below.strip() if below.startswith("    ") else ""
