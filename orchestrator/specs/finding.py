"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How much a finding weighs: an error refuses a launch."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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
