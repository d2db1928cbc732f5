"""The time at which this computer learns of something: seconds since 1970, by a clock that never jumps."""

from __future__ import annotations

import time
from functools import cache


def seen_now() -> float:
    """The time now. All calls in a process agree, whatever happens to its time of day."""
    return _begin() + time.monotonic()


@cache
def _begin() -> float:
    return time.time() - time.monotonic()
