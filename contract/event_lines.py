"""Lines of events: `@orch {json}`, between the log lines of ranks and agents. Encoded and decoded here alone.

Any program on a node can write such a line: each value is checked for its type and its bounds, and a line that does not
fit is an ordinary log line.
"""

from __future__ import annotations

import json
import re

from contract.event_values import bounded, finite, is_nan, read_fields, read_object, read_text
from contract.events import PAYLOADS, Event, LineRedrawn, UnknownEvent
from contract.log_lines import EVENT_MARK

MAX_EVENT_CHARS = 1024 * 1024
"""A forecast of fifty nodes has some ten thousand."""
_FIRST_KIND = re.compile(r'\{"event": "(\w{1,40})"')


def encode_event(event: Event) -> str:
    """One line without its newline; NaN and infinities become null."""
    values = {"event": kind_of(event), **event.values()}
    return EVENT_MARK + json.dumps({name: None if is_nan(value) else value for name, value in values.items()})


def decode_event(text: str, rank: int | None = None) -> Event | None:
    """The event of a line without rank prefix; None for an ordinary line and for one that does not fit, such as a step
    that is not a number. `rank` is that of the line, for an event without one."""
    if not text.startswith(EVENT_MARK) or len(text) > MAX_EVENT_CHARS:
        return None
    try:
        read = json.loads(text[len(EVENT_MARK) :], parse_constant=lambda _name: None, parse_float=finite)
        values = bounded(read_object(read))
        kind = read_text(values.pop("event", None))
        cls = Event.kinds.get(kind, UnknownEvent)
        values.setdefault("rank", rank)
        own = read_fields(cls, values)
        if payload := PAYLOADS.get(cls):
            return cls(**own, **{payload[0]: payload[1](values)})
    except (ValueError, RecursionError):
        return None
    others = {name: value for name, value in values.items() if name not in own and (name, value) != ("rank", None)}
    if cls is UnknownEvent:
        return UnknownEvent(**own, others=others, unknown_kind=kind)
    return cls(**own, others=others)


def kind_in(text: str) -> str:
    """The kind of the event that a line seems to hold, without decoding it; empty for an ordinary line."""
    if not text.startswith(EVENT_MARK):
        return ""
    if match := _FIRST_KIND.match(text, len(EVENT_MARK)):
        return match[1]
    event = decode_event(text)
    return kind_of(event) if event else ""


def is_redrawn(text: str) -> bool:
    """Whether a line holds a state of a progress bar, which is none of the lines that a program leaves behind."""
    return kind_in(text) == LineRedrawn.kind


def kind_of(event: Event) -> str:
    """The kind on the wire."""
    return event.unknown_kind if isinstance(event, UnknownEvent) else event.kind
