"""Plain data for the page: JSON without NaN, texts without control characters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from orchestrator.render.printable import printable


def as_json(data: Any) -> bytes:
    """JSON in ASCII, on one line; NaN and infinities are null."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    return text.encode()


def shown(data: Any) -> Any:
    """The same with texts that are safe to show, keys included."""
    if isinstance(data, str):
        return "\n".join(map(printable, data.split("\n")))
    if isinstance(data, Mapping):
        return {shown(key): shown(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [shown(item) for item in data]
    return data


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(item) for item in data]
    return data
