"""Numbers with units as text."""

from __future__ import annotations

from collections.abc import Sequence


def seconds(value: float) -> str:
    """Two or three digits: 0.043 s, 6.8 s, 127 s."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f} s"


def duration(value: float) -> str:
    """A time of seconds to days in its unit: `48 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if value < limit:
            return f"{value / size:.0f} {unit}" if value / size >= 10 else f"{value / size:.1f} {unit}"
    return f"{value / 86400:.1f} days"


def times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.1f} times"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 10e6 else f"{size / 1e6:.2g} MB"


def mbit(rate: float) -> str:
    """Format bytes per second in Mbit/s."""
    return f"{rate * 8 / 1e6:.0f} Mbit/s"


def names(nodes: Sequence[str]) -> str:
    """List up to five names; count more."""
    return ", ".join(nodes) if len(nodes) <= 5 else f"{len(nodes)} nodes"


def thousands(number: float) -> str:
    """A number with its SI suffix: 4.1k for 4120."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"
    return f"{number:.0f}"
