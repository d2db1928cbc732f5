"""Lines of events: `@orch {json}`, between the log lines of ranks and agents. Encoded and decoded here alone.

Any program on a node can write such a line: each value is checked for its type and its bounds, and a line that does not
fit is an ordinary log line.
"""

from __future__ import annotations

import json
import re
from typing import Any

from contract.event_values import (
    MAX_DEPTH,
    MAX_ITEMS,
    bounded,
    finite,
    int_64,
    is_nan,
    read_fields,
    read_object,
    read_text,
)
from contract.events import PAYLOADS, Event, LineRedrawn, StepDone, UnknownEvent
from contract.log_lines import EVENT_MARK

MAX_EVENT_CHARS = 1024 * 1024
"""A forecast of fifty nodes has some ten thousand."""
_DECODER = json.JSONDecoder(parse_constant=lambda _name: None, parse_int=int_64, parse_float=finite)
_QUICK = json.JSONDecoder(parse_constant=lambda _name: None, parse_int=int_64)
_STEP = f'{EVENT_MARK}{{"event": "{StepDone.kind}"'
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
        values = bounded(read_object(_DECODER.decode(text[len(EVENT_MARK) :])))
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


def step_values(text: str) -> dict[str, Any] | None:
    """The values of a line with a `StepDone` of the usual form, in half the time of `decode_event`: for a reader of
    very many. An infinite figure is infinite here. None for a line of another form, which may be a step all the same.
    """
    if not text.startswith(_STEP) or len(text) > MAX_ITEMS or not text.isascii() or "\\" in text:
        return None
    if text.count("{") + text.count("[") > MAX_DEPTH:
        return None
    try:
        values = read_object(_QUICK.decode(text[len(EVENT_MARK) :]))
        read_fields(StepDone, values)
    except ValueError:
        return None
    return values if values["event"] == StepDone.kind else None  # unless there is a second kind on the line


def kind_in(text: str) -> str:
    """The kind of the event that a line seems to hold, without decoding it; empty for an ordinary line."""
    if not text.startswith(EVENT_MARK):
        return ""
    if match := _FIRST_KIND.match(text, len(EVENT_MARK)):
        return match[1]
    event = decode_event(text)
    return kind_of(event) if event else ""


def is_redrawn(text: str) -> bool:
    """Return whether a line holds a state of a progress bar, which is none of the lines that a program leaves
    behind."""
    return kind_in(text) == LineRedrawn.kind


def kind_of(event: Event) -> str:
    """The kind on the wire."""
    return event.unknown_kind if isinstance(event, UnknownEvent) else event.kind
