"""Numbers in text that a machine wrote: read within bounds, or not at all.

`str.isdigit` is true for `²`, `int` refuses 5000 digits, `float` turns 400 digits into infinity: each would be an
exception, or an unexpected value, in a command that asks all nodes.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[0-9]{1,18}")
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_REAL = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")


def whole(text: str, *, most: int = 10**15) -> int | None:
    """ASCII digits as a number from 0 to `most`; None for everything else."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    return number if number is not None and number <= most else None


def real(text: str, *, most: float = 1e15) -> float | None:
    """A decimal number of at most `most` in size; None for everything else."""
    number = float(text) if _REAL.fullmatch(text) else None
    return number if number is not None and abs(number) <= most else None


def duration_s(text: str) -> int | None:
    """`30s`, `10m`, `2h` or `1d` in seconds; None for everything else."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None
