"""Verdict on a run: its phase, what is wrong with it, and how severe that is. No other place decides on these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.state.condition import SEVERITIES, Code, Condition, Severity
from orchestrator.state.conditions import conditions_of
from orchestrator.state.phase import Phase, phase_of
from orchestrator.state.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict at one moment."""

    phase: Phase
    severity: Severity
    """Severity of the most severe condition, or `error` where the run has failed or is lost."""
    conditions: tuple[Condition, ...]
    """The most severe first."""
    reason: str = ""
    """Reason why it ended: rank, node and cause of a failure by its coordinator, otherwise as recorded."""
    as_of: float
    """Time when the newest fact was seen."""
    source: Literal["record", "nodes"]
    """True if this computer's record says which attempt is the current one."""

    @property
    def has_failed(self) -> bool:
        """True if the run, or a container of one that continues, has failed."""
        return self.phase is Phase.FAILED or Code.CONTAINER_FAILED in self.codes

    @property
    def is_out_of_sight(self) -> bool:
        """True if a part of the run cannot be seen."""
        missing = {Code.NODE_SILENT, Code.CONTAINER_MISSING} & set(self.codes)
        return bool(missing) or self.phase in (Phase.LOST, Phase.UNKNOWN)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the conditions, each once."""
        return tuple(dict.fromkeys(one.code.value for one in self.conditions))


def verdict(state: RunState, now: float) -> Verdict:
    """The verdict on a run at this time."""
    phase = phase_of(state)
    conditions = sorted(conditions_of(state, phase, now), key=lambda one: -SEVERITIES.index(one.severity))
    by_phase: Severity = _OF_PHASE.get(phase, "ok")
    worst = max([by_phase, *(one.severity for one in conditions)], key=SEVERITIES.index)
    return Verdict(
        phase=phase,
        severity=worst,
        conditions=tuple(conditions),
        reason=_reason(state, phase),
        as_of=state.as_of,
        source="record" if state.has_record and not state.is_superseded else "nodes",
    )


def _reason(state: RunState, phase: Phase) -> str:
    finished = state.coordinator.part.finished if state.coordinator else None
    if phase is Phase.FAILED and finished and finished.node:
        rank = "" if finished.rank is None else f"rank {finished.rank} on "
        return f"{rank}{finished.node}: {finished.reason or finished.outcome or ''}"
    end = state.journal.end
    return end.reason if end and not state.is_ahead_of_record else ""


_OF_PHASE: dict[Phase, Severity] = {Phase.FAILED: "error", Phase.LOST: "error", Phase.UNKNOWN: "warning"}
