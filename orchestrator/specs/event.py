"""What a rank says of itself, between its log lines: `@orch {json}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.log_lines import EVENT_MARK


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of one rank. `kind` is started, joined, forecast, left_out, resumed, step, evaluation, checkpoint,
    sample, stopped, done or failed; a kind that is not known is kept, for newer trainers."""

    kind: str
    rank: int | None
    values: Mapping[str, Any] = field(default_factory=dict)


def parse_event(text: str, rank: int | None = None) -> Event | None:
    """The event of a line without its prefix; None for an ordinary line and for what only looks like an event."""
    if not text.startswith(EVENT_MARK):
        return None
    try:
        values = json.loads(text[len(EVENT_MARK) :])
        kind = values.pop("event")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    reported = values.get("rank", rank)
    return Event(kind=str(kind), rank=reported if isinstance(reported, int) else rank, values=values)
