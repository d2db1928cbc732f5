"""What a rank says of itself, between its log lines: `@orch {json}`. Read here and nowhere else, as text of strangers:
any program on a node can write such a line, so each value has its type and its bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.log_lines import EVENT_MARK

LONGEST = 1024 * 1024
"""Characters of an event; a forecast of fifty nodes has some ten thousand."""
MOST, DEEPEST = 4096, 16
"""Items of a list or an object in it, and levels of them."""
STEP_LIMIT, RANK_LIMIT, WHOLE_LIMIT = 10**12, 10**6, 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of one rank. `kind` is started, joined, forecast, left_out, resumed, step, evaluation, checkpoint,
    sample, stopped, done or failed; a kind that is not known is kept, for newer trainers."""

    kind: str
    rank: int | None
    values: Mapping[str, Any] = field(default_factory=dict)


def parse_event(text: str, rank: int | None = None) -> Event | None:
    """The event of a line without its prefix; None for an ordinary line and for what only looks like an event, such as
    one whose step is not a number. NaN and infinities count as missing."""
    if not text.startswith(EVENT_MARK) or len(text) > LONGEST:
        return None
    try:
        told = json.loads(text[len(EVENT_MARK) :], parse_constant=lambda _name: None, parse_float=_finite)
        values = _sound(told)
    except (ValueError, RecursionError):
        return None
    kind = values.pop("event", None) if isinstance(values, dict) else None
    if not isinstance(kind, str) or not _fits(kind, values):
        return None
    return Event(kind=kind, rank=values.get("rank", rank), values=values)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _sound(value: Any, depth: int = 0) -> Any:
    """The same within the bounds that hold for every value. ValueError: it is outside of them."""
    if isinstance(value, str):  # a file name that is not UTF-8 is a lone surrogate, which no screen and no file takes
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int) and abs(value) > WHOLE_LIMIT:
        raise ValueError("a number of more than 64 bits")
    if isinstance(value, list | dict) and (len(value) > MOST or depth >= DEEPEST):
        raise ValueError("more items, or more levels of them, than an event has")
    if isinstance(value, list):
        return [_sound(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_sound(key): _sound(item, depth + 1) for key, item in value.items()}
    return value


def _fits(kind: str, values: Mapping[str, Any]) -> bool:
    """Whether what this program reads of such an event is what it takes it for. A value may lack, or be null."""
    fields = {**_OF_ALL, **_OF_KIND.get(kind, {})}
    return all(check(values[name]) for name, check in fields.items() if values.get(name) is not None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_step(value: Any) -> bool:
    return _is_whole(value) and 0 <= value <= STEP_LIMIT


def _is_rank(value: Any) -> bool:
    return _is_whole(value) and 0 <= value < RANK_LIMIT


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(item is None or _is_number(item) for item in value.values())


def _are_places(value: Any) -> bool:
    """Where ranks stand."""
    return isinstance(value, list) and all(isinstance(one, dict) and _is_rank(one.get("rank")) for one in value)


Check = Callable[[Any], bool]

_OF_ALL: Mapping[str, Check] = {"t": _is_number, "rank": _is_rank, "node": _is_text, "node_rank": _is_rank}
_FAILURE: Mapping[str, Check] = {"class": _is_text, "reason": _is_text, "frame": _is_text, "exit_code": _is_whole}
_OF_KIND: Mapping[str, Mapping[str, Check]] = {
    "joined": {"world_size": _is_rank, "samples_per_step": _is_step},
    "resumed": {"step": _is_step, "checkpoint": _is_text},
    "left_out": {"why": _is_text},
    "step": {"step": _is_step, "loss": _is_number, "per_s": _is_number, "unit": _is_text, "of_forecast": _is_number,
             "compute_s": _are_figures, "balanced": _is_step},
    "evaluation": {"step": _is_step, "loss": _is_number},
    "checkpoint": {"step": _is_step, "verified": _is_flag, "path": _is_text},
    "stopped": {"step": _is_step},
    "done": {"step": _is_step, "loss": _is_number, "seconds": _is_number},
    "failed": {"error": _is_text, "message": _is_text, "frame": _is_text, "class": _is_text},
    "epoch": {"epoch": _is_step},
    "again": {**_FAILURE, "epoch": _is_step, "restarts_left": _is_whole},
    "over": {**_FAILURE, "epoch": _is_step},
    "stuck": {"seconds": _is_number, "ranks": _are_places},
    "moving": {"seconds": _is_number},
    "waiting": {"seconds": _is_number, "for": _are_texts},
    "stalled": {"seconds": _is_number, "nodes": _are_texts},
    "heard": {"nodes": _are_texts},
}  # fmt: skip
