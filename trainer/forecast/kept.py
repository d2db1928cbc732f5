"""A measurement as plain values, for an event or a file, and back: measured once, it can be reckoned with later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from trainer.errors import UsageError
from trainer.forecast.measured import Cost, Measured, NodeSpeed

Part = TypeVar("Part", NodeSpeed, Cost)


def as_values(measured: Measured) -> dict[str, Any]:
    """Numbers, texts, lists of them: all of it, in the units of `Measured`."""
    return asdict(measured)


def from_values(values: Mapping[str, Any]) -> Measured:
    """What `as_values` gave. What a newer trainer adds is ignored.

    UsageError: something is missing, or is not what it was.
    """
    known = {field.name for field in fields(Measured)}
    try:
        plain = {name: value for name, value in values.items() if name in known}
        measured = Measured(
            **{
                **plain,
                "nodes": tuple(_part(NodeSpeed, node) for node in values["nodes"]),
                "costs": tuple(_part(Cost, cost) for cost in values["costs"]),
                "links": tuple(tuple(map(float, row)) for row in values.get("links", ())),
            }
        )
        sound = (
            measured.nodes
            and measured.costs
            and min(node.sample_s for node in measured.nodes) > 0
            and measured.samples_per_step >= 1
            and (len(measured.nodes) == 1 or min(node.link for node in measured.nodes) > 0)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"this is no measurement: {type(error).__name__}: {error}") from error
    if not sound:
        raise UsageError("this is no measurement: without nodes or ways to synchronise, or with times and rates of 0")
    return measured


def _part(kind: type[Part], values: Mapping[str, Any]) -> Part:
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})
