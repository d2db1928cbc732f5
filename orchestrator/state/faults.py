"""Faults of an attempt, counted once each, although every node reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orchestrator.state.run_state import RunState


def faults_of(state: RunState) -> Mapping[str, int]:
    """Restarts of the ranks, hangs and silences of nodes, as the coordinator has reported them."""
    counted = Counter[str]({"restarts of the ranks": state.restarts})
    if state.coordinator:
        counted["hangs"] = state.coordinator.part.hangs
        counted.update({f"silences of {name}": times for name, times in state.coordinator.part.silences.items()})
    return +counted
