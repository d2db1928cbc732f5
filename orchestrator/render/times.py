"""Times of other machines for people: in the zone of this computer, which is named."""

from __future__ import annotations

import time
from datetime import datetime

from orchestrator.checks.hang import timestamp

DAY_S = 86400


def zone() -> str:
    """Its name, such as `CET`."""
    return time.strftime("%Z")


def started(at: str, now: float | None = None) -> str:
    """Date and minute, with how long ago that is where it was within a day; empty for no time."""
    seconds = timestamp(at)
    if not seconds:
        return ""
    ago = (time.time() if now is None else now) - seconds
    shown = datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{shown}, {_ago(ago)}" if 0 <= ago < DAY_S else shown


def clock(seconds: float, now: float | None = None) -> str:
    """A time in seconds since 1970 as hour and minute, with its date unless that is today's; empty if out of range."""
    try:
        at = datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):
        return ""
    today = datetime.fromtimestamp(time.time() if now is None else now).astimezone()
    return at.strftime("%H:%M" if at.date() == today.date() else "%Y-%m-%d %H:%M")


def stamp(at: str) -> str:
    """To the millisecond, with the zone: `2026-01-02T16:04:05.123+01:00`; as it is where it is no time."""
    seconds = timestamp(at)
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds") if seconds else at


def _ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"
    return f"{seconds / 60:.0f} min ago" if seconds < 3600 else f"{seconds / 3600:.0f} h ago"
