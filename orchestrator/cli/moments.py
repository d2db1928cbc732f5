"""Times in options such as --since: so long ago, or a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from orchestrator.specs.errors import UsageError
from orchestrator.specs.numbers import duration_s


def moment(text: str, *, option: str) -> datetime | None:
    """The moment `30s`, `10m`, `2h` or `1d` ago, or of a local time in ISO 8601; None for no text.

    UsageError: the text is neither.
    """
    if not text:
        return None
    if (seconds := duration_s(text)) is not None:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{option} {text}: expected 10m, 2h, 1d or a time like 2026-01-31T10:00") from error


def log_time(text: str, *, option: str) -> str:
    """The same as `moment`, in the format of log lines; empty for no text."""
    at = moment(text, option=option)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if at else ""
