"""Malformed texts: valid ones with pieces removed, duplicated, exchanged and inserted."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

PIECES = (
    "", "9" * 400, "9" * 5000, "-" * 3, "-9", "1e999", "nan", "NaN", "Infinity", "-1", "0", "0.0.0", "²", "\u0661",
    "\x00", "\x1b[2J", "\x9b2J", "\ud800", "\ud7ff", "\u2028", "\u202e", "<", ">", "&", "&a;", "{", "}", "[" * 50,
    "]" * 50, '"', "'", "\\", "/", "..", "%", "=", ":", ",", " ", "\t", "\r", "\n", "null", "true", "{}", "[]", "N/A",
    "MiB", "A" * 3000, "[rank" + "9" * 5000 + "]: ", "@orch {", "*", "?", "[1-999999999]", "[a:z:0]", "!!python/object",
    "&x", "<<: *x", "#", ";",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 7, 10**12, 10**40, 1.5, 1e308, float("inf"), float("nan"), "", "x", "9" * 5000, "\ud800",
    "\x1b[2J", [], {}, [None], {"a": 1}, [[[]]], "² ",
)  # fmt: skip


def mutated(text: str, random: Random) -> str:
    """Return a mutation of this text."""
    if random.random() < 0.3 and (other := _other_values(text, random)):
        return other
    for _ in range(random.randrange(1, 6)):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.choice((0, 0, 1, 2, 12, 60)))
        piece = random.choice(PIECES) if random.random() < 0.7 else text[start:end] * random.choice((2, 3, 200))
        text = text[:start] + piece + text[end:]
    return text


def _other_values(text: str, random: Random) -> str:
    """Mutations of the values of a JSON object in the text; empty if it contains none."""
    begin, end = text.find("{"), text.rfind("}") + 1
    try:
        values = json.loads(text[begin:end]) if 0 <= begin < end else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(values, dict):
        return ""
    for _ in range(random.randrange(1, 4)):
        _exchange(values, random)
    return text[:begin] + json.dumps(values) + text[end:]


def _exchange(values: dict[str, Any], random: Random) -> None:
    """Replace one value, at this or a deeper level."""
    if not values:
        return
    key = random.choice(list(values))
    inner = values[key]
    if isinstance(inner, dict) and inner and random.random() < 0.6:
        _exchange(inner, random)
    elif isinstance(inner, list) and inner and random.random() < 0.6:
        place = random.randrange(len(inner))
        if isinstance(inner[place], dict) and random.random() < 0.6:
            _exchange(inner[place], random)
        else:
            inner[place] = deepcopy(random.choice(VALUES))
    elif random.random() < 0.1:
        del values[key]
    else:
        values[key] = deepcopy(random.choice(VALUES))
