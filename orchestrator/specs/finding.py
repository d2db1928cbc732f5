"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How much a finding weighs: an error refuses a launch."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What `orch doctor --fix` may do about a finding, once somebody has agreed."""

    what: str
    """What it does, in words: `start Docker`."""
    on_node: tuple[str, ...] = ()
    """Command to be run there; needs no password (`sudo -n`)."""
    orch: tuple[str, ...] = ()
    """Else the words of an `orch` command."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing, with its cause and what to do."""

    id: str
    """Stable, `area.fault`: scripts and documentation rely on it."""
    severity: Severity
    node: str
    message: str
    cause: str = ""
    fix: str = ""
    auto_fix: Fix | None = None
    """None where only a person should do it."""


def heaviest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors before warnings before notes, else in the order given."""
    return tuple(sorted(findings, key=lambda finding: _WEIGHT.index(finding.severity)))


_WEIGHT = (Severity.ERROR, Severity.WARNING, Severity.INFO)
