"""Text of other machines, safe to show."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # escape sequences: colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles and links
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # what is left of control characters, but tab and newline
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # what turns the direction of the letters around it
)


def printable(text: str) -> str:
    """Remove what would move the cursor or change the terminal; of a progress bar, leave what it showed last. A lone
    surrogate, such as a byte of a file name that is not UTF-8, is shown escaped: no terminal takes it."""
    shown = _UNPRINTABLE.sub("", text.rstrip("\r").rsplit("\r", 1)[-1])
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def counted(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
