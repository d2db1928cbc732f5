"""The page of every finding, `docs/findings/ID.md`: its front matter is the catalogue of texts, the rest explains it.

Shipped with the package, so that a machine without internet can show it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from orchestrator.specs.errors import ConfigError, UsageError

ID = re.compile(r"[a-z]+\.[a-z][a-z0-9_]*")
SECTIONS = ("What it means", "Why it matters", "How to fix it", "How it was found")
"""Headings of every page, in this order."""

_TITLE = re.compile(rf"# (?P<id>{ID.pattern}): (?P<title>.+)\n")


@dataclass(frozen=True, kw_only=True)
class FindingPage:
    """The explanation of one finding."""

    id: str
    title: str
    text: str
    """The page below its front matter, as Markdown."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def sections(self) -> dict[str, str]:
        """Text by heading."""
        parts = re.split(r"^## (.+)\n", self.text, flags=re.MULTILINE)[1:]
        return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


@dataclass(frozen=True, kw_only=True)
class FindingTexts:
    """Front matter of a page. A text may hold `{values}`; a mapping has one text for each case of the finding."""

    severity: str | Mapping[str, str]
    message: str | Mapping[str, str]
    cause: str | Mapping[str, str] = ""
    fix: str | Mapping[str, str] = ""
    auto_fix: Mapping[str, Any] | None = None
    """`what`, and either `on_node` or `orch`: words of a command."""


@cache
def texts_of(id: str) -> FindingTexts:
    """The texts of this finding, read from its page when it is found for the first time."""
    from ruamel.yaml import YAML

    front, _ = read_page(pages_folder() / f"{id}.md")
    return FindingTexts(**YAML(typ="safe").load(front))


def all_pages() -> tuple[FindingPage, ...]:
    """Every page, in order of the ids."""
    return tuple(_read(path) for path in sorted(pages_folder().glob("*.*.md")))


def find_page(id: str) -> FindingPage:
    """The page of this finding. An id without a page is a `UsageError` that names the nearest."""
    known = {path.name.removesuffix(".md"): path for path in pages_folder().glob("*.*.md")}
    if id in known:
        return _read(known[id])
    near = [one for one in sorted(known) if id and id in one] or difflib.get_close_matches(id, known)
    meant = f"did you mean {' or '.join(near[:3])}? " if near else ""
    raise UsageError(f"no finding is called {id!r}", hint=f"{meant}orch explain lists them all")


def pages_folder(kind: str = "findings") -> Path:
    """Folder of pages, `findings` or `causes`: inside the installed package, or under `docs/` in a clone."""
    package = Path(str(files("orchestrator")))
    for folder in (package / kind, package.parent / "docs" / kind):
        if folder.is_dir():
            return folder
    raise ConfigError(f"this installation lacks the pages of the {kind}", hint="install orch again")


def _read(path: Path) -> FindingPage:
    _, text = read_page(path)
    head = _TITLE.match(text)
    if head is None:
        raise ConfigError(f"{path}: its heading is not '# ID: title'", hint="install orch again")
    return FindingPage(id=head["id"], title=head["title"], text=text)


def read_page(path: Path) -> tuple[str, str]:
    """Front matter and text of a page, without the marks for the tests of its commands."""
    front, _, text = path.read_text("utf-8").removeprefix("---\n").partition("\n---\n")
    return front, re.sub(r"^<!-- .* -->\n", "", text, flags=re.M)
