"""Pages of `docs/findings` and `docs/causes`, one for each area: sections by id, each with texts in YAML.

Shipped with the package, so that a machine without internet can show them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from orchestrator.specs.errors import ConfigError

ID = re.compile(r"[a-z]+\.[a-z][a-z0-9_]*")

_ENTRY = re.compile(
    rf"^## (?P<id>{ID.pattern}): (?P<title>[^\n]+)\n\n```yaml\n(?P<yaml>.*?)^```\n(?P<text>.*?)(?=^## |\Z)", re.M | re.S
)
_HEADING = re.compile(r"^\*\*([A-Z][a-z ]+)\.\*\*\n", re.M)


@dataclass(frozen=True, kw_only=True)
class PageEntry:
    """A finding or a cause, as its page has it."""

    id: str
    title: str
    yaml: str
    """Texts that messages are made of."""
    text: str
    """The explanation below them, as Markdown."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def anchor(self) -> str:
        """Anchor of its heading, as GitHub makes it."""
        return re.sub(r"[^\w -]", "", f"{self.id}: {self.title}".lower()).replace(" ", "-")

    @property
    def values(self) -> dict[str, Any]:
        """The texts, by name."""
        from ruamel.yaml import YAML

        return dict(YAML(typ="safe").load(self.yaml))

    @property
    def sections(self) -> dict[str, str]:
        """The explanation, by heading."""
        parts = _HEADING.split(self.text)[1:]
        return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def areas_of(kind: str) -> tuple[str, ...]:
    """Areas of `findings` or `causes`: a page each."""
    return tuple(sorted(path.stem for path in pages_folder(kind).glob("[a-z]*.md")))


@cache
def entries_of(kind: str, area: str) -> Mapping[str, PageEntry]:
    """Findings or causes of the page of an area, by id."""
    entries = (found.groupdict() for found in _ENTRY.finditer(_page(kind, area)))
    return {entry["id"]: PageEntry(**{**entry, "text": entry["text"].strip()}) for entry in entries}


def introduction_of(kind: str, area: str) -> str:
    """The text of a page below its heading, before the first entry."""
    return _page(kind, area).partition("\n## ")[0].partition("\n\n")[2].strip()


def pages_folder(kind: str) -> Path:
    """Folder of `findings` or `causes`: inside the installed package, or under `docs/` in a clone."""
    package = Path(str(files("orchestrator")))
    for folder in (package / kind, package.parent / "docs" / kind):
        if folder.is_dir():
            return folder
    raise ConfigError(f"this installation lacks the pages of the {kind}", hint="install orch again")


def _page(kind: str, area: str) -> str:
    """A page without the marks for the tests of its commands."""
    return re.sub(r"^<!-- .* -->\n", "", (pages_folder(kind) / f"{area}.md").read_text("utf-8"), flags=re.M)
