"""Options, declared once as fields of a frozen dataclass: flags, range checks and help texts follow from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """Everything about an option except its name, type and default."""

    help: str
    section: str = ""
    """Title of the section of --help that begins with this option."""
    aliases: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Further flags without a value, each with the value that it sets."""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    """Parser of the value, where the type of the field does not determine it."""
    without_value: Any = None
    """Value of the flag alone. None: the flag requires a value."""
    varies: bool = False
    """True if workloads and presets have a default of their own."""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    @property
    def limits(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        limits = {"at least": self.at_least, "more than": self.above, "at most": self.at_most, "less than": self.below}
        return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)

    def allows(self, value: float) -> bool:
        """Return whether the value is within the limits. NaN never is."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def option(default: Any, help_text: str, **details: Any) -> Any:
    """Declare a field as an option; `details` are the fields of OptionSpec."""
    return field(default=default, metadata={"option": OptionSpec(help=help_text, **details)})


def declared(options: Any) -> Iterator[tuple[str, Any, OptionSpec]]:
    """Yield name, default and specification of each option of a dataclass."""
    for each in fields(options):
        if "option" in each.metadata:
            yield each.name, each.default, each.metadata["option"]


def values_given(given: argparse.Namespace, options: Any) -> dict[str, Any]:
    """Return the values that the command line or another layer gave, by name."""
    return {name: value for name, *_ in declared(options) if (value := getattr(given, name, None)) is not None}


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def out_of_range(options: Any) -> list[str]:
    """Return a message for each value outside its option's limits."""
    wrong = []
    for name, _, spec in declared(options):
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            if spec.limits and isinstance(number, int | float) and not spec.allows(number):
                wrong.append(f"{flag(name)} {number:g}: expected {spec.limits}")
    return wrong


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add a flag for each option. Its default is None, which marks options that were not given."""
    types = get_type_hints(options)
    group: Any = parser
    for name, default, spec in declared(options):
        if spec.section:
            group = parser.add_argument_group(spec.section)
        help_text = _with_default(default, spec).replace("%", "%%")
        group.add_argument(flag(name), *spec.aliases, help=help_text, dest=name, **_value(types[name], spec))
        for constant, value in spec.constants.items():
            text = f"disable {flag(name)}" if value is False else f"the same as {flag(name)} {value}"
            group.add_argument(constant, dest=name, action="store_const", const=value, help=text)


def _with_default(default: Any, spec: OptionSpec) -> str:
    """Return the help text with the default, unless the text explains it."""
    if default is None or default is False or spec.without_value is not None or "default" in spec.help:
        return spec.help
    values = default if isinstance(default, tuple) else (default,)
    texts = ("on" if each is True else f"{each:g}" if isinstance(each, float) else f"{each}" for each in values)
    own = ", or the workload's" if spec.varies else ""
    return f"{spec.help} (default: {','.join(texts)}{own})"


def _value(kind: Any, spec: OptionSpec) -> dict[str, Any]:
    """Return the arguments of `add_argument` that follow from the type of the value."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    types = [part for part in parts if part is not NoneType and get_origin(part) is not Literal]
    if choices := spec.choices or (not types and words):
        return {"choices": choices}
    if types == [bool]:
        if not words:
            return {"action": argparse.BooleanOptionalAction}
        return {"choices": words, "nargs": "?", "const": True, "metavar": words[0]}
    metavar = spec.metavar or {Path: "DIR", int: "N"}.get(types[0])
    without = {} if spec.without_value is None else {"nargs": "?", "const": spec.without_value}
    if spec.read:
        return {"type": spec.read, "metavar": metavar, **without}
    if words:
        return {"type": _number_or(words[0]), "metavar": spec.metavar or f"N|{words[0]}", **without}
    if get_origin(types[0]) is tuple:
        return {"type": _pair, "metavar": metavar}
    return {"type": types[0], "metavar": metavar, **without}


def _number_or(word: str) -> Callable[[str], int | str]:
    def read(text: str) -> int | str:
        return word if text == word else int(text)

    read.__name__ = f"number or {word}"  # argparse names the type in its message
    return read


def _pair(text: str) -> tuple[float, float]:
    first, second = text.split(",")
    return float(first), float(second)


_pair.__name__ = "pair of numbers"
