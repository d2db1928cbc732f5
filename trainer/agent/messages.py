"""What agents say to each other, read in one place. Whatever does not fit is a `MisfitError`, with no other effect."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from trainer.agent.coordinator import LONGEST_PAUSE_S, Again, Go, Order, Over
from trainer.agent.rank_exit import LONGEST, Ending, from_values

MOST_EPOCHS = 1_000_000
MOST = 2**32
"""Of any other whole number: exit codes, global ranks."""


class MisfitError(ValueError):
    """It is no message, or its values are out of bounds."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """No rank runs here, and the next epoch may come."""

    epoch: int
    """The last that this node has seen."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """This node's ranks have ended."""

    ending: Ending


@dataclass(frozen=True, kw_only=True)
class Ping:
    """A heartbeat, in both directions."""


Report = Ready | Ended | Ping


def as_message(said: Report | Order) -> Mapping[str, Any]:
    return {type(said).__name__.lower(): asdict(said)}


def read_report(line: bytes, names: Collection[str]) -> Report:
    """What a node tells the coordinator. `names`: of the run's nodes."""
    kind, values = _kind_of(line)
    if kind == "ready":
        return Ready(epoch=whole(values, "epoch", most=MOST_EPOCHS))
    if kind == "ended":
        return Ended(ending=_ending(values, "ending", names))
    if kind == "ping":
        return Ping()
    raise MisfitError("no report")


def read_order(line: bytes, names: Collection[str]) -> Go | Again | Over | Ping:
    """What the coordinator tells a node."""
    kind, values = _kind_of(line)
    if kind == "go":
        return Go(epoch=whole(values, "epoch", most=MOST_EPOCHS))
    if kind == "again":
        return Again(
            epoch=whole(values, "epoch", most=MOST_EPOCHS),
            cause=_ending(values, "cause", names),
            restarts_left=whole(values, "restarts_left", least=-1, most=MOST_EPOCHS),
            pause_s=_seconds(values, "pause_s"),
        )
    if kind == "over":
        return Over(ending=_ending(values, "ending", names))
    if kind == "ping":
        return Ping()
    raise MisfitError("no order")


def values_of(line: bytes) -> dict[str, Any]:
    """An object of JSON."""
    try:
        values = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise MisfitError(f"not JSON: {error}"[:200]) from None
    if not isinstance(values, dict):
        raise MisfitError("no object of JSON")
    return values


def whole(values: Mapping[str, Any], key: str, *, most: int, least: int = 0) -> int:
    number = values.get(key)
    if type(number) is not int or not least <= number <= most:
        raise MisfitError(f"{key} is no whole number from {least} to {most}")
    return number


def _kind_of(line: bytes) -> tuple[str, Mapping[str, Any]]:
    values = values_of(line)
    if len(values) != 1:
        raise MisfitError("not one kind of message")
    ((kind, inner),) = values.items()
    if not isinstance(inner, dict):
        raise MisfitError("no values")
    return kind, inner


def _seconds(values: Mapping[str, Any], key: str) -> float:
    number = values.get(key)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= LONGEST_PAUSE_S:
        raise MisfitError(f"{key} is no time in seconds")
    return float(number)


def _ending(values: Mapping[str, Any], key: str, names: Collection[str]) -> Ending:
    """Each field of its type, whole numbers and texts within bounds, the node one of the run's."""
    inner = values.get(key)
    if not isinstance(inner, dict):
        raise MisfitError(f"{key} is no ending")
    hints = get_type_hints(Ending)
    names_of_fields = [field.name for field in fields(Ending) if field.name in inner]
    wrong = [name for name in names_of_fields if not _fits(inner[name], hints[name])]
    if wrong or "kind" not in inner or inner.get("node") not in names:
        raise MisfitError(f"{key} is no ending of a node of this run")
    return from_values(inner)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    kinds = get_args(hint) or (hint,)
    if type(value) not in kinds:
        return False
    if isinstance(value, str):
        return len(value) <= LONGEST
    return not isinstance(value, int) or -MOST <= value <= MOST


def _no_number(name: str) -> None:
    raise MisfitError(f"{name} is not a JSON number")
