"""Every finding with its texts and its explanation, from `docs/findings/AREA.md`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from orchestrator.specs.errors import UsageError
from orchestrator.specs.pages import PageEntry, areas_of, entries_of


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
    return FindingTexts(**entries_of("findings", id.partition(".")[0])[id].values)


def all_findings() -> tuple[PageEntry, ...]:
    """Every finding, in order of the ids."""
    return tuple(entry for area in areas_of("findings") for entry in entries_of("findings", area).values())


def explained_finding(id: str) -> PageEntry:
    """The finding of this id. An unknown id is a `UsageError` that names the nearest."""
    known = {finding.id: finding for finding in all_findings()}
    if id in known:
        return known[id]
    near = [one for one in known if id and id in one] or difflib.get_close_matches(id, known)
    meant = f"did you mean {' or '.join(near[:3])}? " if near else ""
    raise UsageError(f"no finding is called {id!r}", hint=f"{meant}orch explain lists them all")
