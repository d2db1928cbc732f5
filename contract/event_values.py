"""Values of events: a reader for each type, which checks type and bounds, and the fields that are made of them.

Any program on a node can write a line with an event: nothing in it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

MAX_ITEMS, MAX_DEPTH = 4096, 16
"""Items of a list or an object in an event, and levels of nesting."""
STEP_LIMIT, RANK_LIMIT, INT_LIMIT = 10**12, 10**6, 2**63 - 1

Checked = TypeVar("Checked")


def _is(*kinds: type[Checked]) -> Callable[[Any], Any]:
    """A reader that returns a value of one of these types. ValueError: another type."""

    def read(value: Any) -> Any:
        if type(value) not in kinds:  # JSON has no subclasses; a bool does not count as an integer
            raise ValueError(f"{value!r:.80} is of another type")
        return value

    return read


read_text, read_object = _is(str), _is(dict)
_int, _float = _is(int), _is(int, float)


def _int_below(limit: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number: int = _int(value)
        if not 0 <= number < limit:
            raise ValueError(f"{number} is out of bounds")
        return number

    return read


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(read_text(item) for item in _is(list)(value))


def _figures(value: Any) -> Mapping[str, float | None]:
    return {key: None if item is None else _float(item) for key, item in read_object(value).items()}


def _rows(value: Any) -> tuple[tuple[str, str, str], ...]:
    rows = tuple(_texts(row) for row in _is(list)(value))
    if any(len(row) != 3 for row in rows):
        raise ValueError("a row of other than three texts")
    return tuple((first, second, third) for first, second, third in rows)


def _rank_numbers(value: Any) -> tuple[int, ...]:
    return tuple(_int_below(RANK_LIMIT)(item) for item in _is(list)(value))


def _rank_positions(value: Any) -> tuple[RankPosition, ...]:
    found = tuple(RankPosition(**read_fields(RankPosition, read_object(item))) for item in _is(list)(value))
    if any(one.rank is None for one in found):
        raise ValueError("a rank without its number")
    return found


Text = Annotated[str, read_text]
Flag = Annotated[bool, _is(bool)]
Int = Annotated[int, _int]
Float = Annotated[float, _float]
StepNumber = Annotated[int, _int_below(STEP_LIMIT + 1)]
RankNumber = Annotated[int, _int_below(RANK_LIMIT)]
Texts = Annotated[tuple[str, ...], _texts]
RankNumbers = Annotated[tuple[int, ...], _rank_numbers]
Rows = Annotated[tuple[tuple[str, str, str], ...], _rows]
Figures = Annotated[Mapping[str, float | None], _figures]


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """Position of a rank: its line, its work, and its Python stack where that was requested."""

    rank: RankNumber | None = None
    process: Int | None = None
    line: Text | None = None
    """The user's line: `FILE:LINE in FUNCTION`."""
    cpu: Float | None = None
    """CPU seconds per second of the rank and its descendants."""
    step: StepNumber | None = None
    """Step of the trainer, otherwise the number of optimizer steps."""
    steps_per_s: Float | None = None
    """Optimizer steps per second in the last minute."""
    collectives_per_step: Float | None = None
    """Collectives of torch.distributed that it completed for each of them."""
    part: Text | None = None
    """Part of the step, as the trainer names it."""
    exchange: Text | None = None
    """The collective that the rank reports to be in."""
    frames: Texts | None = None
    """`FILE:LINE in FUNCTION`, the innermost first; empty: the rank did not answer."""
    state: Text | None = None
    """The kernel's letter for the process."""


RankPositions = Annotated[tuple[RankPosition, ...], _rank_positions]


def plain(of_fields: Any) -> dict[str, Any]:
    """The fields that have a value, positions of ranks as objects."""
    values = {one.name: getattr(of_fields, one.name) for one in fields(of_fields)}
    return {name: _plain_items(value) for name, value in values.items() if value is not None}


def _plain_items(value: Any) -> Any:
    is_positions = isinstance(value, tuple) and value and isinstance(value[0], RankPosition)
    return [plain(one) for one in value] if is_positions else value


def is_nan(value: Any) -> bool:
    """Return whether it is NaN or an infinity, which JSON does not have."""
    return isinstance(value, float) and not math.isfinite(value)


def int_64(digits: str) -> int:
    if abs(number := int(digits)) > INT_LIMIT:
        raise ValueError("an integer of more than 64 bits")
    return number


def finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def bounded(value: Any, depth: int = 0) -> Any:
    """The same value, within the bounds of every value. ValueError: it is outside."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, list | dict) and (len(value) > MAX_ITEMS or depth >= MAX_DEPTH):
        raise ValueError("more items, or more levels, than an event has")
    if isinstance(value, list):
        return [bounded(item, depth + 1) for item in value]
    if isinstance(value, dict):  # most values of most lines are floats
        return {_encodable(key): item if type(item) is float else bounded(item, depth + 1)
                for key, item in value.items()}  # fmt: skip
    return value


def _encodable(text: str) -> str:
    """A file name that is not UTF-8 is a lone surrogate, which no screen and no file takes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the fields that are there. ValueError: one is of another type, or out of bounds."""
    return {name: read(value) for name, read in _readers(cls).items() if (value := values.get(name)) is not None}


@cache
def _readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    """Field → its reader: the metadata of `Annotated[type, reader] | None`."""
    hints = get_type_hints(cls, include_extras=True)
    names = [one.name for one in fields(cls) if one.default is None]
    return {name: get_args(hints[name])[0].__metadata__[0] for name in names}
