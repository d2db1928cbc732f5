"""Limits from which a node holds a run back, and the shares of the time that its steps report."""

from __future__ import annotations

from contract.events import ProgressEvent

WAITING, EXCHANGING = 0.2, 0.3
"""Shares of the time from which waiting for data, or for the exchange between nodes, is worth a look."""
SLOW_LINK = 0.7
"""Times the other links' speed."""
SWAP_MIB = 512
"""Swapped memory from which a slow node counts as swapping: systems swap out some of what is never used."""


def share_of(event: ProgressEvent, name: str) -> float | None:
    """A share of the time (`waiting`, `exchanging`) that a step reports, from 0 to 1; None without a valid one."""
    value = event.others.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1 else None
