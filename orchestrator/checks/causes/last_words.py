"""Python's tracebacks in a rank's lines: which exception ended it, and where in the user's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BEGIN = re.compile(r"^\s*(?:Original )?Traceback \(most recent call last\):")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_UNREAD = re.compile(r'^\s+File "[^"]+", line \d+$')
_CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_IGNORED = re.compile(r"^Exception ignored in")
_LOG_LINE = re.compile(r"^\[?[WEIF]\d{3,4} \d\d:\d\d:\d\d\.\d+ ")
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<|^/opt/venv/")
MESSAGE_LINES = 12
"""Of an exception: state_dict's differences, say, can be hundreds."""


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """The exception that nobody caught."""

    message: tuple[str, ...]
    """`Error: message`, of one or more lines."""
    earlier: tuple[str, ...] = ()
    """Messages of the exceptions that it came from (`raise … from …`)."""
    frame: str = ""


def last_words(lines: Sequence[str]) -> LastWords | None:
    """The last traceback of these lines; None where there is none."""
    begins = [
        number
        for number, line in enumerate(lines)
        if _BEGIN.match(line) and not (number and _IGNORED.match(lines[number - 1]))
    ]
    if not begins:  # of a script that cannot be read there is a place, and no traceback
        begins = [number - 1 for number, line in enumerate(lines) if _UNREAD.match(line)][:1]
        lines = ["", *lines] if begins == [-1] else lines
        begins = [max(0, begin) for begin in begins]
    if not begins:
        return None
    first = len(begins) - 1  # of the chain that the last one ends
    while first and any(_CHAIN.match(line) for line in lines[begins[first - 1] : begins[first]]):
        first -= 1
    blocks = [lines[begin:end] for begin, end in zip(begins[first:], [*begins[first + 1 :], len(lines)], strict=True)]
    return LastWords(
        message=_message(blocks[-1]),
        earlier=tuple(line for block in blocks[:-1] for line in _message(block)),
        frame=_frame(blocks[-1]),
    )


def _message(block: Sequence[str]) -> tuple[str, ...]:
    """From the first line after the frames, which is not indented as they are, to what is no part of it."""
    indent = len(block[0]) - len(block[0].lstrip())
    body = [line[indent:] for line in block[1:]]
    start = next((number for number, line in enumerate(body) if line.strip() and not line.startswith(" ")), len(body))
    message = []
    for line in body[start:]:
        if _CHAIN.match(line) or _IGNORED.match(line) or _LOG_LINE.match(line) or line.startswith("@orch "):
            break
        if line.strip():
            message.append(line)
    return tuple(message[:MESSAGE_LINES])


def _frame(block: Sequence[str]) -> str:
    """The innermost place outside of installed libraries, else the innermost of all."""
    frames = [found for line in block if (found := _FRAME.match(line))]
    if not frames:
        return ""
    at = next((frame for frame in reversed(frames) if not LIBRARY.search(frame["file"])), frames[-1])
    return f"{at['file']}:{at['line']}" + (f" in {at['function']}" if at["function"] else "")
