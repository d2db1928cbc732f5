"""A manifest as YAML: the same text for the same data, read alike by parsers of YAML 1.1 and 1.2. No I/O."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from orchestrator.render.printable import printable

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
"""Words that no parser takes for anything but text, unless they are among these."""
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
WIDEST = 1_000_000


class _Quoting(SafeRepresenter):
    """Text in double quotes, unless it is a plain word."""

    def represent_str(self, data: str) -> ScalarNode:
        is_word = _PLAIN.fullmatch(data) and data.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if is_word else '"')

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # of the base class
        return True


_Quoting.add_representer(str, _Quoting.represent_str)


def manifest_text(manifest: Mapping[str, Any], notes: Iterable[str]) -> str:
    """YAML with the notes as comments above it."""
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Quoting
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # the order is the manifest's
    writer.allow_unicode = False  # what a terminal or an encoding would change is escaped
    writer.width = WIDEST
    text = io.StringIO()
    writer.dump(manifest, text)
    return "".join(_comments(notes)) + text.getvalue()


def _comments(notes: Iterable[str]) -> Iterator[str]:
    for line in (line for note in notes for line in note.splitlines()):
        yield f"# {printable(line).encode('ascii', 'backslashreplace').decode()}\n"
