"""Lines of a container's log: the rank that wrote one, the mark of an event, and the length that is read of one."""

from __future__ import annotations

import re

EVENT_MARK = "@orch "
"""Mark before the JSON object of an event."""
MAX_CHARS = 4096
"""Characters of a line that are searched: regular expressions would take minutes for a base64 picture of 1 MB."""
_RANK_PREFIX = re.compile(r"\[rank([0-9]{1,9})\]:[ \t]?")
"""`rank_prefix`: before each line of a rank by the supervisor, and again before an uncaught exception by torch."""
_CUT = " … "


def rank_prefix(rank: int) -> str:
    """Prefix of each line of a rank."""
    return f"[rank{rank}]: "


def split_rank(text: str) -> tuple[int | None, str]:
    """The rank that wrote a line (None: torchrun's agent, or the supervisor) and what it wrote."""
    if match := _RANK_PREFIX.match(text):
        return int(match[1]), text[match.end() :]
    return None, text


def without_rank(text: str) -> str:
    """A line without the prefixes of supervisor and torch."""
    while match := _RANK_PREFIX.match(text):
        text = text[match.end() :]
    return text


def readable(text: str) -> str:
    """A line as it is searched: without prefixes, its middle left out where it is longer than `MAX_CHARS`."""
    if len(text) > MAX_CHARS:
        half = (MAX_CHARS - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    return without_rank(text)
