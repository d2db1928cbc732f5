"""The findings, as `docs/findings/AREA.md` has them: each with its texts, YAML below its heading, and its explanation.

Shipped with the package, so that a machine without internet can show them.
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
"""Headings of every explanation, in this order."""

_FINDING = re.compile(
    rf"^## (?P<id>{ID.pattern}): (?P<title>[^\n]+)\n\n```yaml\n(?P<texts>.*?)^```\n\n(?P<text>.*?\n)(?=\n## |\Z)",
    re.M | re.S,
)
_HEADING = re.compile(rf"^\*\*({'|'.join(SECTIONS)})\.\*\*\n", re.M)


@dataclass(frozen=True, kw_only=True)
class ExplainedFinding:
    """A finding as its page has it."""

    id: str
    title: str
    texts: str
    """YAML of `FindingTexts`."""
    text: str
    """The explanation, as Markdown."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def sections(self) -> dict[str, str]:
        """Text by heading."""
        parts = _HEADING.split(self.text)[1:]
        return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


@dataclass(frozen=True, kw_only=True)
class FindingTexts:
    """Texts of a finding. Each may hold `{values}`; a mapping has one text for each case of the finding."""

    severity: str | Mapping[str, str]
    message: str | Mapping[str, str]
    cause: str | Mapping[str, str] = ""
    fix: str | Mapping[str, str] = ""
    auto_fix: Mapping[str, Any] | None = None
    """`what`, and either `on_node` or `orch`: words of a command."""


@cache
def texts_of(id: str) -> FindingTexts:
    """The texts of this finding, read when it is found for the first time."""
    from ruamel.yaml import YAML

    return FindingTexts(**YAML(typ="safe").load(_findings_of(id.partition(".")[0])[id].texts))


def all_findings() -> tuple[ExplainedFinding, ...]:
    """Every finding, in order of the ids."""
    areas = sorted(path.stem for path in pages_folder().glob("[a-z]*.md"))
    return tuple(finding for area in areas for finding in _findings_of(area).values())


def explained_finding(id: str) -> ExplainedFinding:
    """The finding of this id. An unknown id is a `UsageError` that names the nearest."""
    known = {finding.id: finding for finding in all_findings()}
    if id in known:
        return known[id]
    near = [one for one in known if id and id in one] or difflib.get_close_matches(id, known)
    meant = f"did you mean {' or '.join(near[:3])}? " if near else ""
    raise UsageError(f"no finding is called {id!r}", hint=f"{meant}orch explain lists them all")


def pages_folder(kind: str = "findings") -> Path:
    """Folder of pages, `findings` or `causes`: inside the installed package, or under `docs/` in a clone."""
    package = Path(str(files("orchestrator")))
    for folder in (package / kind, package.parent / "docs" / kind):
        if folder.is_dir():
            return folder
    raise ConfigError(f"this installation lacks the pages of the {kind}", hint="install orch again")


@cache
def _findings_of(area: str) -> Mapping[str, ExplainedFinding]:
    """The findings of a page, by id."""
    text = without_marks((pages_folder() / f"{area}.md").read_text("utf-8"))
    return {found["id"]: ExplainedFinding(**found.groupdict()) for found in _FINDING.finditer(text)}


def without_marks(text: str) -> str:
    """The text of a page without the marks for the tests of its commands."""
    return re.sub(r"^<!-- .* -->\n", "", text, flags=re.M)
