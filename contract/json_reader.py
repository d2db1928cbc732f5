"""Build dataclasses from JSON that any program on a node may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

MAX_ITEMS = 4096
"""Items of a list or an object."""
MAX_NUMBER = 1e18

Kind = TypeVar("Kind")


def from_json(kind: type[Kind], values: Any, *, where: str = "", most: int = MAX_ITEMS) -> Kind:
    """Build a dataclass from a decoded JSON object; unknown keys are ignored.

    ValueError: a field is missing, has another type, or is out of bounds. `where`: path of the object, for messages;
    `most`: items of a list or an object.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where or kind.__name__}: expected an object")
    known: Any = kind
    hints, required = _fields(known)
    prefix = f"{where}." if where else ""
    found = {name: _read(hint, values[name], prefix + name, most) for name, hint in hints.items() if name in values}
    if missing := required - values.keys():
        raise ValueError(f"{where or kind.__name__}: missing {', '.join(sorted(missing))}")
    return kind(**found)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Type of each field, and names of the required fields."""
    required = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    return get_type_hints(kind), required


def _read(hint: Any, value: Any, name: str, most: int) -> Any:
    origin, parameters = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _read(parameters[0], value, name, most)
    if origin is tuple and isinstance(value, list | tuple) and len(value) <= most:
        return tuple(_read(parameters[0], item, f"{name}.{at}", most) for at, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping) and len(value) <= most:
        return {_read(str, key, name, most): _read(parameters[1], item, name, most) for key, item in value.items()}
    if origin is Literal and value in parameters:
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if hint in (int, float) and number and abs(value) <= MAX_NUMBER:  # false for NaN; an int may be too large to be one
        return hint(value)
    if isinstance(value, Mapping) and hasattr(hint, "__dataclass_fields__"):
        return from_json(hint, value, where=name, most=most)
    raise ValueError(f"{name}: {value!r:.80} is of another type, or out of bounds")
