"""Verdict on a run: its phase, what is wrong with it, and how severe that is. No other place decides on these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.state.condition import Condition, Severity
from orchestrator.state.phase import Phase
from orchestrator.state.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict at one moment."""

    phase: Phase
    severity: Severity
    """That of the most severe condition, or `error` where the run has failed or is lost."""
    conditions: tuple[Condition, ...]
    """The most severe first."""
    reason: str = ""
    """Why it ended, as recorded."""
    as_of: float
    """When the newest fact was seen."""
    source: Literal["record", "nodes"]
    """Whether this computer's record says which attempt is the current one."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.severity in ("ok", "info")

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the conditions, each once."""
        return tuple(dict.fromkeys(one.code.value for one in self.conditions))


def verdict(state: RunState, now: float) -> Verdict:
    """The verdict on a run at this time."""
    raise NotImplementedError
