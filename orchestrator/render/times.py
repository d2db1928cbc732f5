"""Times of other machines for people: in the zone of this computer, which is named."""

from __future__ import annotations

import time
from datetime import datetime

from orchestrator.checks.hang import timestamp

DAY_S = 86400
DATED_S = 14 * DAY_S


def zone() -> str:
    """Its name, such as `CET`."""
    return time.strftime("%Z")


def started(at: str, now: float | None = None) -> str:
    """Date and minute, with how long ago that is where it was within a day; empty for no time."""
    passed = (time.time() if now is None else now) - timestamp(at)
    return f"{moment(at)}, {_ago(passed)}" if 0 <= passed < DAY_S else moment(at)


def moment(at: str) -> str:
    """Date and minute; empty for no time."""
    seconds = timestamp(at)
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M") if seconds else ""


def ago(at: str, now: float | None = None) -> str:
    """Format how long ago that is, `12 min ago` or `3 days ago`; its date where it was two weeks ago or more."""
    seconds = timestamp(at)
    passed = (time.time() if now is None else now) - seconds
    if not seconds or not 0 <= passed < DATED_S:
        return moment(at).partition(" ")[0]
    return _ago(passed)


def clock(seconds: float, now: float | None = None) -> str:
    """A time in seconds since 1970 as hour and minute, with its date unless that is today's; empty if out of range."""
    try:
        at = datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):
        return ""
    today = datetime.fromtimestamp(time.time() if now is None else now).astimezone()
    return at.strftime("%H:%M" if at.date() == today.date() else "%Y-%m-%d %H:%M")


def stamp(at: str) -> str:
    """Format a time to the millisecond, with the zone: `2026-01-02T16:04:05.123+01:00`; other text stays as it is."""
    seconds = timestamp(at)
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds") if seconds else at


def stamp_of(seconds: float) -> str:
    """A time in seconds since 1970 to the second, as `moment` has it, with the zone; empty if out of range."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S (%Z)")
    except (ValueError, OverflowError, OSError):
        return ""


def _ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days ago"
