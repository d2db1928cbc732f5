"""Problems of an inventory as messages: line, key, the value found and the one expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator.specs.inventory_files.inventory_yaml import Entry, Mapping, plain, shown, shown_key
from orchestrator.specs.inventory_types import Expected

_LABEL_KEY_EXPECTED = "letters, digits, '_', '-', '.' and '/', at most 63"
_LABEL_EXPECTED = "one line of text, at most 253 characters"


class Problems:
    """Collects problems; `lines` has each once, in the order of the file."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def lines(self, filename: str) -> tuple[str, ...]:
        """`inventory.yaml:7: …`, as the message has them."""
        return tuple(f"{filename}:{line}: {text}" for line, text in sorted(self._found, key=lambda found: found[0]))

    def add(self, line: int, text: str) -> None:
        """Add one problem."""
        self._found.setdefault((line, text))

    def add_unknown(self, entry: Entry, known: Iterable[str], where: str) -> None:
        """A key that means nothing here, with the nearest one that does."""
        near = difflib.get_close_matches(entry.key, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        self.add(entry.line, f"unknown key {shown(entry.key)}{_in(where)} ({advice})")

    def add_repeated(self, entry: Entry, first: Entry, where: str) -> None:
        """Add a duplicate key."""
        self.add(entry.line, f"key {shown(entry.key)}{_in(where)} appears twice (first on line {first.line})")

    def add_invalid(self, error: ValidationError, model: type[BaseModel], tree: Mapping, *, where: str) -> None:
        """The verdicts of a model on the values of `tree`, save those that came from the defaults."""
        for detail in error.errors(include_url=False):
            self._add_verdict(detail, model, tree, where)

    def _add_verdict(self, detail: ErrorDetails, model: type[BaseModel], tree: Mapping, where: str) -> None:
        entries = _entries(tree, detail["loc"])
        if not entries or any(entry.inherited for entry in entries):
            return
        entry, path = entries[-1], ".".join(shown_key(entry.key) for entry in entries)
        expected = _expected(model, detail)
        if detail["loc"][-1] == "[key]":
            self.add(entry.line, f"label {shown(entry.key)}{_in(where)}; expected {expected}")
        elif path == "name":
            self.add(entry.line, f"the name {shown(plain(entry.value))}; expected {expected}")
        elif isinstance(entry.value, Mapping) and detail["type"] == "value_error":
            self.add(entry.line, f"{path}{_in(where)}: expected {expected}")
        else:
            value = detail["input"] if path == "address" else plain(entry.value)
            self.add(entry.line, f"{path}{_in(where)} is {shown(value)}; expected {expected}")


def known_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys of a model as the file has them."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def expected_of(field: FieldInfo) -> str:
    """Description of the values that a field accepts."""
    return next((item.text for item in field.metadata if isinstance(item, Expected)), "another value")


def _in(where: str) -> str:
    return f" in {where}" if where else ""


def _entries(tree: Mapping, location: tuple[int | str, ...]) -> list[Entry]:
    """Entries from the outermost key of the location to the innermost that is in the file."""
    entries: list[Entry] = []
    at: object = tree
    for key in location:
        entry = at.get(str(key)) if isinstance(at, Mapping) else None
        if entry is None:
            break
        entries.append(entry)
        at = entry.value
    return entries


def _expected(model: type[BaseModel], detail: ErrorDetails) -> str:
    """The validator's description if it has one, otherwise the field's."""
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    location = detail["loc"]
    if location[0] == "labels" and len(location) > 1:
        return _LABEL_KEY_EXPECTED if location[-1] == "[key]" else _LABEL_EXPECTED
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    field = fields[str(location[0])]
    nested = field.annotation
    if len(location) > 1 and isinstance(nested, type) and issubclass(nested, BaseModel):
        return _expected(nested, {**detail, "loc": location[1:]})
    return expected_of(field)
