"""Faults of an attempt, counted once each, although every node reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from contract.events import LivenessReported, NodesStalled
from orchestrator.state.run_state import RunState


def faults_of(state: RunState) -> Mapping[str, int]:
    """Restarts of the ranks, hangs and silences of nodes, as the coordinator has reported them."""
    counted = Counter[str]()
    counted["restarts of the ranks"] = state.restarts
    for _, event in state.coordinator.part.moments if state.coordinator else ():
        if isinstance(event, LivenessReported) and event.fault:
            counted["hangs"] += 1
        elif isinstance(event, NodesStalled):
            counted.update(f"silences of {name}" for name in event.nodes or ())
    return +counted
