"""YAML text as a tree with line numbers and the text as written; not validated yet. And data as YAML text.

Built from ruamel's parse events, not by loading: so that duplicate keys can all be named, a label may be written
`rack: 03`, and nesting is bounded before anything recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files import HINT

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 100_000
"""Values of a document with its aliases written out: ten lines of YAML can stand for millions."""

_QUOTED_OR_COMMENT = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|^\s*#.*$", re.MULTILINE)
_BRACKET = re.compile(r"[][{}]")
_NUMBER = re.compile(r"[-+.0-9a-zA-Z]{1,64}")
"""Longer than any number that means something; Python refuses to read integers of thousands of digits."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """`value` as YAML 1.2 reads it (`no` and `22:22` are text), `text` as it was written."""

    line: int
    value: str | int | float | bool | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Items:
    """A YAML sequence."""

    line: int
    items: tuple[Tree, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One `key: value`."""

    key: str
    line: int
    value: Tree
    inherited: bool = False
    """Taken over from `defaults`, where it has been checked already."""


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """A YAML mapping, equal keys included: who reads it decides what they mean."""

    line: int
    entries: tuple[Entry, ...]

    def get(self, key: str) -> Entry | None:
        """The first entry of this key."""
        return next((entry for entry in self.entries if entry.key == key), None)


Tree = Scalar | Items | Mapping


def read_file(path: Path) -> bytes:
    """Read a file, but not many more bytes than an inventory may have. ConfigError: it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=HINT) from error


def read_yaml(content: str | bytes, *, filename: str, tags: bool = False) -> Tree:
    """One YAML document, or a ConfigError with the line. `tags`: let `!vault` and the like pass as plain text, and
    resolve anchors, aliases and `<<`, which files of other programs have."""
    text = _decoded(content, filename)
    if _nested_too_deep(text):  # before ruamel: its scanner takes minutes over 200 000 opening brackets
        raise _refusal(filename, "", f"nested deeper than {MAX_DEPTH} levels")
    try:
        return _Builder(filename, tags).build(text)
    except MarkedYAMLError as error:
        raise _syntax_error(error, filename) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{ord(text[error.position]):04X}, which YAML does not allow"
        raise _refusal(filename, line, what) from None
    except YAMLError as error:
        raise _refusal(filename, "", f"not YAML: {error}") from None


def write_yaml(document: AnyMapping[str, Any], *, header: str = "") -> str:
    """Plain data as block-style YAML; `header` is comment lines for its beginning."""
    text = StringIO()
    yaml = YAML()
    yaml.width = 4096  # a long path stays on its line
    yaml.allow_unicode = True
    yaml.dump(document, text)
    return header + text.getvalue()


def mapping_of(value: Any) -> dict[str, Any]:
    """Return the value; an empty mapping for anything else."""
    return value if isinstance(value, dict) else {}


def plain(tree: Tree) -> Any:
    """Dicts, lists and scalars; of equal keys the first."""
    if isinstance(tree, Mapping):
        values: dict[str, Any] = {}
        for entry in tree.entries:
            values.setdefault(entry.key, plain(entry.value))
        return values
    if isinstance(tree, Items):
        return [plain(item) for item in tree.items]
    return tree.value


def require_single_keys(tree: Tree, *, filename: str) -> None:
    """ConfigError names every key that a mapping has twice, with both lines."""
    problems: list[str] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Items):
            waiting.extend(one.items)
        if not isinstance(one, Mapping):
            continue
        lines: dict[str, int] = {}
        for entry in one.entries:
            if entry.key in lines:
                first = lines[entry.key]
                problems.append(f"{filename}:{entry.line}: {shown_key(entry.key)} is there already, on line {first}")
            lines.setdefault(entry.key, entry.line)
            waiting.append(entry.value)
    if problems:
        raise ConfigError(f"cannot read {filename}", problems=problems)


def shown(value: object) -> str:
    """A value of the file in a message: short, and harmless to a terminal."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"


def shown_key(key: str) -> str:
    """A key of the file in a message: bare where it is a word."""
    return key if key.isprintable() and 0 < len(key) <= 60 else shown(key)


class _Builder:
    """Builds the tree from events, with an explicit stack instead of recursion."""

    def __init__(self, filename: str, tags: bool) -> None:
        self._filename = filename
        self._tags = tags
        self._yaml = YAML(typ="safe", pure=True)
        self._documents = 0
        self._anchored: dict[str, Tree] = {}
        self._copied = 0
        """Values that aliases have repeated."""

    def build(self, text: str) -> Tree:
        events = (event for event in self._yaml.parse(text) if self._wanted(event))
        stack: list[tuple[Event, list[Tree]]] = []
        for event in events:
            if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
                if len(stack) == MAX_DEPTH:
                    raise self._refused(event, f"nested deeper than {MAX_DEPTH} levels")
                stack.append((event, []))
                continue
            start = event
            if isinstance(event, AliasEvent):
                tree = self._aliased(event, len(stack))
            elif isinstance(event, ScalarEvent):
                tree = Scalar(line=_line(event), value=self._resolved(event), text=event.value)
            else:
                start, children = stack.pop()
                tree = self._closed(start, children)
            if not isinstance(event, AliasEvent) and (anchor := getattr(start, "anchor", None)):
                self._anchored[anchor] = tree
            if not stack:
                root = tree
                continue
            stack[-1][1].append(tree)
        if not self._documents:
            raise _refusal(self._filename, 1, "the file is empty")
        return root

    def _wanted(self, event: Event) -> bool:
        """Return whether it is part of the tree; refuses what has no business in an inventory."""
        if isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._refused(event, "a second YAML document; expected one")
            if event.version not in (None, (1, 2)):
                raise self._refused(event, "a %YAML line; expected none, YAML 1.2 is what is read")
        if not self._tags and (isinstance(event, AliasEvent) or getattr(event, "anchor", None)):
            raise self._refused(event, "an anchor (&) or alias (*); expected the value itself, or a key in defaults")
        if not self._tags and isinstance(event, (ScalarEvent, MappingStartEvent, SequenceStartEvent)) and event.tag:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            raise self._refused(event, f"the tag {shown(tag)}; expected a plain value")
        return isinstance(
            event, (AliasEvent, ScalarEvent, MappingStartEvent, MappingEndEvent, SequenceStartEvent, SequenceEndEvent)
        )

    def _aliased(self, event: AliasEvent, depth: int) -> Tree:
        """The value of an anchor that stands before it."""
        tree = self._anchored.get(event.anchor)
        if tree is None:
            raise self._refused(event, f"the alias *{event.anchor} has no anchor before it")
        values, deep = _extent(tree)
        self._copied += values
        if self._copied > MAX_VALUES or depth + deep > MAX_DEPTH + 1:
            raise self._refused(event, f"aliases that stand for more than {MAX_VALUES} values, or {MAX_DEPTH} levels")
        return tree

    def _closed(self, start: Event, children: list[Tree]) -> Tree:
        if isinstance(start, SequenceStartEvent):
            return Items(line=_line(start), items=tuple(children))
        return Mapping(line=_line(start), entries=tuple(self._entries(children)))

    def _entries(self, children: list[Tree]) -> Iterator[Entry]:
        """Entries of a mapping; those that `<<` merges come last, and never in place of its own."""
        own: set[str] = set()
        merged: list[Tree] = []
        for key, value in zip(children[::2], children[1::2], strict=True):
            if not isinstance(key, Scalar):
                raise _refusal(self._filename, key.line, "a key that is a list or mapping; expected a word")
            if self._tags and key.text == "<<":
                merged += value.items if isinstance(value, Items) else [value]
                continue
            own.add(key.text)
            yield Entry(key=key.text, line=key.line, value=value)
        for mapping in merged:
            if not isinstance(mapping, Mapping):
                raise _refusal(self._filename, mapping.line, "`<<` merges mappings only")
            for entry in mapping.entries:
                if entry.key not in own:
                    own.add(entry.key)
                    yield entry

    def _resolved(self, event: ScalarEvent) -> str | int | float | bool | None:
        if not event.implicit[0] or event.tag:  # quoted, or tagged
            return str(event.value)
        tag = self._yaml.resolver.resolve(ScalarNode, event.value, event.implicit)
        kind = str(tag).rpartition(":")[2]
        if kind == "null":
            return None
        if kind not in ("bool", "int", "float") or not _NUMBER.fullmatch(event.value):
            return str(event.value)
        value = self._yaml.constructor.construct_object(ScalarNode(tag, event.value))
        assert isinstance(value, (bool, int, float))  # noqa: S101  # what these three tags stand for
        return value

    def _refused(self, event: Event, what: str) -> ConfigError:
        return _refusal(self._filename, _line(event), what)


def _extent(tree: Tree) -> tuple[int, int]:
    """Number of its values and depth of its nesting. Counting ends beyond MAX_VALUES."""
    count, deepest, waiting = 0, 0, [(tree, 1)]
    while waiting and count <= MAX_VALUES:
        one, depth = waiting.pop()
        count, deepest = count + 1, max(deepest, depth)
        inner = one.items if isinstance(one, Items) else ()
        inner = tuple(entry.value for entry in one.entries) if isinstance(one, Mapping) else inner
        waiting += [(each, depth + 1) for each in inner]
    return count, deepest


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1


def _decoded(content: str | bytes, filename: str) -> str:
    size = len(content)
    if size > MAX_BYTES:
        raise _refusal(filename, "", f"larger than {MAX_BYTES // 1024} KiB, which no inventory is")
    if isinstance(content, str):
        return content.removeprefix("\ufeff")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"the byte 0x{content[error.start]:02x} is not UTF-8; expected a file saved as UTF-8"
        raise _refusal(filename, line, what) from None


def _nested_too_deep(text: str) -> bool:
    depth = 0
    for match in _BRACKET.finditer(_QUOTED_OR_COMMENT.sub("", text)):
        depth = depth + 1 if match.group() in "[{" else max(0, depth - 1)
        if depth > 2 * MAX_DEPTH:
            return True
    return False


def _syntax_error(error: MarkedYAMLError, filename: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    place = f"{mark.line + 1}:{mark.column + 1}" if mark else ""
    problem = str(error.problem or error.context or "not YAML")
    if "'\\t'" in problem:
        return _refusal(filename, place, "a tab; YAML is indented with spaces")
    hint = ""
    if "expected ',' or '}'" in problem and "'['" in problem:
        hint = '; inside { } a range needs quotes: "192.168.1.[51-55]"'
    return _refusal(filename, place, f"not YAML: {problem.splitlines()[0]}{hint}")


def _refusal(filename: str, place: int | str, what: str) -> ConfigError:
    where = f"{filename}:{place}" if place else filename
    return ConfigError(f"cannot read {filename}", problems=(f"{where}: {what}",))
