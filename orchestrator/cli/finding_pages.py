"""The page of every finding: shipped with the package, so that a machine without internet can show it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from orchestrator.specs.errors import ConfigError, UsageError

ID = re.compile(r"[a-z]+\.[a-z][a-z0-9_]*")
SECTIONS = ("What it means", "Why it matters", "How to fix it", "How it was found")
"""Headings of every page, in this order."""
RENAMED_AREAS = {"rest": "power", "room": "resources", "sameness": "consistency"}
"""Former names of areas: scripts and notes may still hold an id that begins with one."""

_TITLE = re.compile(rf"# (?P<id>{ID.pattern}): (?P<title>.+)\n")


@dataclass(frozen=True, kw_only=True)
class FindingPage:
    """What is to be known of one finding."""

    id: str
    title: str
    text: str
    """The whole page, as Markdown."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def sections(self) -> dict[str, str]:
        """Text by heading."""
        parts = re.split(r"^## (.+)\n", self.text, flags=re.MULTILINE)[1:]
        return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def all_pages() -> tuple[FindingPage, ...]:
    """Every page, in order of the ids."""
    return tuple(_read(path) for path in sorted(pages_folder().glob("*.*.md")))


def find_page(id: str) -> FindingPage:
    """The page of this finding. An id without a page is a `UsageError` that says its new name or names the nearest."""
    known = {path.name.removesuffix(".md"): path for path in pages_folder().glob("*.*.md")}
    if id in known:
        return _read(known[id])
    area, dot, fault = id.partition(".")
    if (renamed := f"{RENAMED_AREAS.get(area, area)}{dot}{fault}") != id:
        raise UsageError(f"{id} is now called {renamed}", hint=f"orch explain {renamed}")
    near = [one for one in sorted(known) if id and id in one] or difflib.get_close_matches(id, known)
    meant = f"did you mean {' or '.join(near[:3])}? " if near else ""
    raise UsageError(f"no finding is called {id!r}", hint=f"{meant}orch explain lists them all")


def pages_folder() -> Path:
    """`findings/` lies inside the installed package, and under `docs/` in a clone."""
    package = Path(str(files("orchestrator")))
    for folder in (package / "findings", package.parent / "docs" / "findings"):
        if folder.is_dir():
            return folder
    raise ConfigError("this installation lacks the pages of the findings", hint="install orch again")


def _read(path: Path) -> FindingPage:
    text = path.read_text("utf-8")
    head = _TITLE.match(text)
    if head is None:
        raise ConfigError(f"{path}: its first line is not '# ID: title'", hint="install orch again")
    return FindingPage(id=head["id"], title=head["title"], text=text)
